//! Directories that are this user's alone, and the files in them: any file that another user could replace would be believed.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

/// The directory of this user for what can be made again.
pub fn cache_directory() -> PathBuf {
    candidates().swap_remove(0)
}

/// Directories to try for that, best first; never empty.
pub fn candidates() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    [cache, variable("XDG_RUNTIME_DIR")]
        .into_iter()
        .flatten()
        .map(|base| base.join("selfwind"))
        .chain([PathBuf::from(format!("/tmp/selfwind-{}", geteuid().as_raw()))])
        .collect()
}

/// Makes `directory` (mode 0700) when it is missing and checks that nobody else can write to it.
pub fn private_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let metadata = fs::symlink_metadata(directory)?;
    if !metadata.is_dir() {
        return refuse("not a directory");
    }
    if metadata.uid() != geteuid().as_raw() {
        return refuse("belongs to another user");
    }
    if metadata.mode() & 0o022 != 0 {
        return refuse("others may write to it");
    }
    Ok(())
}

/// Reads a file of at most `limit` bytes in a private directory, and notes that it was used: by their times of change the files
/// are told that were not used for longest.
pub fn read_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    private_directory(directory_of(path))?;
    let mut file = OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)?;
    let metadata = file.metadata()?;
    let own = metadata.is_file() && metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o022 == 0;
    if !own || metadata.len() > limit {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    file.read_to_end(&mut bytes)?;
    // That it may fail is no harm.
    let _ = file.set_modified(SystemTime::now());
    Ok(bytes)
}

/// Writes a file in a private directory, which is made if it is missing. Whoever reads it sees all of it or what was there
/// before.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    private_directory(directory_of(path))?;
    let temporary = path.with_extension(format!("{}.part", std::process::id()));
    let written = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(bytes)?;
        fs::rename(&temporary, path)
    };
    written().inspect_err(|_| drop(fs::remove_file(&temporary)))
}

fn directory_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

fn refuse<T>(why: &str) -> io::Result<T> {
    Err(io::Error::other(why.to_owned()))
}
