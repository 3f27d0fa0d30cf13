//! The cache of table files: one table per build-id, or per file without one, for all programs of this user.
//!
//! Programs map these files, so nothing is used that other users could have written, files are only ever renamed and unlinked,
//! never modified, and a damaged one counts as absent. `docs/table-file.md` has the rules.

use std::fs::{self, DirEntry, File, FileTimes, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use selfwind_profile::private_directory;

use crate::terminal::notices::Notices;
use unwind::table_file::{self, FILE_NAME_MAX, HEADER_LEN};
use unwind::{Table, TableError};

/// The environment variable with the directory, also read by the agent; `0` means: no tables.
pub(crate) const VARIABLE: &str = "SELFWIND_TABLES";
/// Default maximum size of the cache, in bytes.
pub(crate) const DEFAULT_BYTES: u64 = 512 << 20;
/// Default maximum time since a recording last used a table.
pub(crate) const DEFAULT_AGE: Duration = Duration::from_secs(90 * 24 * 60 * 60);
/// How often a table's contents are checked and its time of use is updated.
const CHECK_EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// A temporary file older than this is left over from a dead writer.
const TEMPORARY_MAX_AGE: Duration = Duration::from_secs(60 * 60);
/// Maximum size of a table.
const TABLE_MAX: u64 = 1 << 30;

/// Why a table file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    /// It does not exist or cannot be read.
    #[error("{0}")]
    System(#[from] io::Error),
    /// Others could have written it.
    #[error("not a regular file that only this user or root can write to")]
    Untrusted,
    /// It is damaged.
    #[error("{0}")]
    Damaged(#[from] TableError),
    /// It belongs to another file.
    #[error("the table belongs to another build-id")]
    Misnamed,
}

/// The directory.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    directory: PathBuf,
    writable: bool,
}

/// What to keep when pruning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum size of all tables together, in bytes.
    pub(crate) bytes: u64,
    /// Maximum time since a recording last used a table.
    pub(crate) age: Duration,
    /// Check the contents of every file, and remove damaged ones.
    pub(crate) examine: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: DEFAULT_BYTES, age: DEFAULT_AGE, examine: false }
    }
}

/// The result of pruning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pruned {
    /// Files removed.
    pub(crate) removed: u64,
    /// Their size in bytes.
    pub(super) removed_bytes: u64,
    /// Files kept.
    pub(crate) kept: u64,
    /// Their size in bytes.
    pub(super) kept_bytes: u64,
}

impl Cache {
    /// The directory in [`VARIABLE`], or the user's own, created if it does not exist; `None` if the variable turns tables off.
    pub(crate) fn find() -> io::Result<Option<Self>> {
        match std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
            Some(value) if ["0", "no", "off"].iter().any(|no| value == *no) => Ok(None),
            Some(value) => Self::at(Path::new(&value)).map(Some),
            None => Self::first_of(private_directory::candidates()).map(Some),
        }
    }

    /// The cache of this user, if there is one. Everything works without it, only slower.
    pub(crate) fn of_user(notices: Notices) -> Option<Self> {
        Self::find().unwrap_or_else(|error| {
            notices.say(format_args!("no cache of unwind tables: {error}"));
            None
        })
    }

    fn first_of(candidates: Vec<PathBuf>) -> io::Result<Self> {
        let mut last = Err(io::Error::from(io::ErrorKind::NotFound));
        for candidate in candidates {
            last = private_directory::private_directory(&candidate)
                .and_then(|()| Self::at(&candidate.join("tables")));
            if last.is_ok() {
                break;
            }
        }
        last
    }

    /// The cache in `directory`, created if it does not exist. Fails if users other than this one or root could write to it.
    pub(crate) fn at(directory: &Path) -> io::Result<Self> {
        let refused = |why: &str| io::Error::other(format!("{}: {why}", directory.display()));
        if !directory.is_absolute() {
            return Err(refused("the directory of tables is not an absolute path"));
        }
        let user = geteuid().as_raw();
        match fs::symlink_metadata(directory) {
            Ok(metadata) if table_file::is_trusted_directory(metadata.uid(), metadata.mode(), user) => {
                Ok(Self { directory: directory.to_owned(), writable: metadata.uid() == user })
            }
            Ok(_) => Err(refused("not a directory that only this user or root can write to")),
            Err(_) => private_directory::private_directory(directory)
                .map(|()| Self { directory: directory.to_owned(), writable: true })
                .map_err(|error| refused(&error.to_string())),
        }
    }

    /// Its path.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// False for a directory of root, which is read-only here.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// True if the table of `build_id` exists, is complete, and was built or [loaded](Self::load) within a day. Takes a few system
    /// calls, independent of its size.
    pub(crate) fn holds(&self, build_id: &[u8]) -> bool {
        let look = || -> Result<bool, Unusable> {
            let (file, metadata) = open_trusted(&self.path_of(build_id)?)?;
            let mut header = [0; HEADER_LEN];
            file.read_exact_at(&mut header, 0)?;
            let checked = metadata.modified()?.elapsed().is_ok_and(|age| age <= CHECK_EVERY);
            Ok(checked && table_file::is_whole(&header, metadata.len(), build_id))
        };
        look().unwrap_or(false)
    }

    /// Loads the table of `build_id`, checks it completely, and updates its time of use.
    pub(crate) fn load(&self, build_id: &[u8]) -> Result<Vec<u8>, Unusable> {
        let (file, bytes) = open(&self.path_of(build_id)?)?;
        if Table::from_bytes(&bytes)?.build_id() != build_id {
            return Err(Unusable::Misnamed);
        }
        let used = file.metadata()?.modified()?;
        if self.writable && used.elapsed().is_ok_and(|age| age > CHECK_EVERY) {
            let _ = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
        }
        Ok(bytes)
    }

    /// Stores `table` atomically, replacing any file of the same name.
    pub(crate) fn store(&self, build_id: &[u8], table: &[u8]) -> io::Result<PathBuf> {
        let path = self.path_of(build_id)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let unique = format!(".{name}.{}.{:?}", std::process::id(), std::thread::current().id());
        let temporary = self.directory.join(unique.replace(['(', ')'], ""));
        let write = || {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(table)?;
            // Read-only, since truncating the file would crash programs that map it.
            file.set_permissions(Permissions::from_mode(0o400))?;
            fs::rename(&temporary, &path)
        };
        let _ = fs::remove_file(&temporary);
        let written = write();
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written.map(|()| path)
    }

    fn path_of(&self, build_id: &[u8]) -> io::Result<PathBuf> {
        let mut buffer = [0; FILE_NAME_MAX];
        let name = table_file::name(build_id, &mut buffer)
            .ok_or_else(|| io::Error::other("a build-id of unsupported length"))?;
        Ok(self.directory.join(name))
    }

    /// Removes tables of other versions and those unused for longer than the limit, then the least recently used ones until the rest
    /// fits. Programs that have mapped a table keep it.
    pub(crate) fn prune(&self, limits: Limits) -> io::Result<Pruned> {
        let now = SystemTime::now();
        let mut pruned = Pruned::default();
        let mut stay = Vec::new();
        for entry in fs::read_dir(&self.directory)?.flatten() {
            let Ok(metadata) = fs::symlink_metadata(entry.path()) else { continue };
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let age = now.duration_since(used).unwrap_or_default();
            match fate(&entry, age, &limits) {
                Fate::Leave => {}
                Fate::Remove => pruned.remove(&entry.path(), metadata.len()),
                Fate::Stay => stay.push((used, metadata.len(), entry.path())),
            }
        }
        stay.sort_by_key(|(used, _, _)| std::cmp::Reverse(*used));
        for (_, bytes, path) in stay {
            if pruned.kept_bytes + bytes > limits.bytes {
                pruned.remove(&path, bytes);
            } else {
                pruned.kept += 1;
                pruned.kept_bytes += bytes;
            }
        }
        Ok(pruned)
    }
}

impl Pruned {
    fn remove(&mut self, path: &Path, bytes: u64) {
        if fs::remove_file(path).is_ok() {
            self.removed += 1;
            self.removed_bytes += bytes;
        }
    }
}

enum Fate {
    /// Not one of our files.
    Leave,
    Remove,
    /// Keep while there is room.
    Stay,
}

fn fate(entry: &DirEntry, age: Duration, limits: &Limits) -> Fate {
    let name = entry.file_name();
    let name = name.as_bytes();
    let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
    let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
    let is_temporary = name.starts_with(b".") && name.windows(7).any(|part| part == b".table.");
    if is_temporary && is_file {
        return if age > TEMPORARY_MAX_AGE { Fate::Remove } else { Fate::Leave };
    }
    if !name.ends_with(b".table") || is_directory {
        return Fate::Leave;
    }
    let in_use = is_file && table_file::is_name(name) && age <= limits.age;
    match in_use && (!limits.examine || open(&entry.path()).is_ok()) {
        true => Fate::Stay,
        false => Fate::Remove,
    }
}

/// Opens a table file that no other user can have written.
fn open_trusted(path: &Path) -> Result<(File, Metadata), Unusable> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(nix::libc::ELOOP) => Unusable::Untrusted,
        _ => Unusable::System(error),
    })?;
    let metadata = file.metadata()?;
    let trusted = table_file::is_trusted(metadata.uid(), metadata.mode(), geteuid().as_raw());
    if !trusted || metadata.len() > TABLE_MAX {
        return Err(Unusable::Untrusted);
    }
    Ok((file, metadata))
}

/// Opens a trusted table file and reads it.
fn open(path: &Path) -> Result<(File, Vec<u8>), Unusable> {
    let (file, metadata) = open_trusted(path)?;
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    (&file).take(TABLE_MAX).read_to_end(&mut bytes)?;
    Table::from_intact_bytes(&bytes)?;
    Ok((file, bytes))
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
