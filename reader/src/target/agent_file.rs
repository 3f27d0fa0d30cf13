//! The embedded agent as a file that a loader can preload.
//!
//! It is unpacked once per content into a private directory of the user: a file that another user could replace would run in every
//! profiled program. Root's file is readable by everyone, for programs that switch to another user.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::geteuid;
use selfwind_profile::private_directory::{candidates, private_directory};

use crate::sampling::sources::Sources;
use crate::target::agent_exports;

static AGENT: &[u8] = include_bytes!(env!("SELFWIND_AGENT_FILE"));
/// The second build, which also interposes allocator, locks and mappings.
static PROBES_AGENT: &[u8] = include_bytes!(env!("SELFWIND_PROBES_AGENT_FILE"));

/// Why the agent cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentFileError {
    /// Built with SELFWIND_SKIP_AGENT=1.
    #[error(
        "this selfwind was built with SELFWIND_SKIP_AGENT=1 and holds no agent; build it again without that variable"
    )]
    NotEmbedded,
    /// No suitable directory.
    #[error(
        "no directory for the agent ({tried}); set XDG_CACHE_HOME to one that you own and that is not mounted noexec"
    )]
    NoPlace {
        /// Each directory tried, and why it is not suitable.
        tried: String,
    },
}

/// Both builds, if they are embedded.
#[cfg(test)]
pub(super) fn builds() -> Option<(&'static [u8], &'static [u8])> {
    content().map(|plain| (plain, PROBES_AGENT))
}

/// The agent's file, if one is embedded.
pub(crate) fn content() -> Option<&'static [u8]> {
    (!AGENT.is_empty()).then_some(AGENT)
}

/// The second build, if it is embedded.
pub(super) fn probes_content() -> Option<&'static [u8]> {
    (!PROBES_AGENT.is_empty()).then_some(PROBES_AGENT)
}

/// Unpacks the agent if necessary, and returns its path.
pub(crate) fn unpack() -> Result<PathBuf, AgentFileError> {
    let name = concat!("agent-", env!("CARGO_PKG_VERSION"), "-", env!("SELFWIND_AGENT_HASH"), ".so");
    unpack_content(name, AGENT)
}

/// The same for the build of the agent that `sources` need: it interposes what they need, and nothing else.
pub(crate) fn unpack_for(sources: &Sources) -> Result<PathBuf, AgentFileError> {
    let wanted = sources.interposed();
    if wanted.is_empty() {
        return unpack();
    }
    let library =
        agent_exports::with_only(&wanted, PROBES_AGENT, AGENT).ok_or(AgentFileError::NotEmbedded)?;
    let of: String = wanted.iter().map(|interposed| format!("-{}", interposed.source())).collect();
    let hash = env!("SELFWIND_PROBES_AGENT_HASH");
    unpack_content(&format!("agent-probes{of}-{}-{hash}.so", env!("CARGO_PKG_VERSION")), &library)
}

/// Whether a library with this file name is an agent, of whichever version.
pub(crate) fn is_agent(name: &[u8]) -> bool {
    (name.starts_with(b"agent-") || name.starts_with(b"libselfwind_agent")) && name.ends_with(b".so")
}

fn unpack_content(name: &str, content: &[u8]) -> Result<PathBuf, AgentFileError> {
    if content.is_empty() {
        return Err(AgentFileError::NotEmbedded);
    }
    let mut tried = Vec::new();
    for (directory, access) in directories() {
        match unpack_into(&directory, name, content, access) {
            Ok(path) => return Ok(path),
            Err(error) => tried.push(format!("{}: {error}", directory.display())),
        }
    }
    Err(AgentFileError::NoPlace { tried: tried.join("; ") })
}

/// Who can read the agent's file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Only its user.
    Private,
    /// Everyone: a program started by root may switch to another user.
    Public,
}

/// Directories to try for the agent's file, best first. For root, one that every user can reach, if there is one.
fn directories() -> Vec<(PathBuf, Access)> {
    let private = candidates();
    let mut public = Vec::new();
    if geteuid().is_root() {
        public.extend(private.iter().cloned());
        public.insert(public.len() - 1, PathBuf::from("/var/cache/selfwind"));
        public.retain(|directory| directory.parent().is_some_and(is_reachable));
    }
    let public = public.into_iter().map(|directory| (directory.join("agent"), Access::Public));
    public.chain(private.into_iter().map(|directory| (directory, Access::Private))).collect()
}

/// True if every user can reach `directory` and only root can replace it. It need not exist.
fn is_reachable(directory: &Path) -> bool {
    const SEARCH: u32 = 0o001;
    const WRITE: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let mut found = directory.ancestors().filter_map(|path| Some((path, fs::symlink_metadata(path).ok()?)));
    found.all(|(_, metadata)| {
        let mode = metadata.mode();
        let replaceable = mode & WRITE != 0 && mode & STICKY == 0;
        metadata.is_dir() && metadata.uid() == 0 && mode & SEARCH != 0 && !replaceable
    })
}

fn refuse<T>(why: &str) -> io::Result<T> {
    Err(io::Error::other(why.to_owned()))
}

fn unpack_into(directory: &Path, name: &str, content: &[u8], access: Access) -> io::Result<PathBuf> {
    // The loader splits LD_PRELOAD at spaces and colons.
    if directory.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte)) {
        return refuse("a space or a colon in the name");
    }
    match access {
        Access::Private => private_directory(directory)?,
        Access::Public => public_directory(directory)?,
    }
    if statvfs(directory)?.flags().contains(FsFlags::ST_NOEXEC) {
        return refuse("mounted noexec");
    }
    let path = directory.join(name);
    if !is_unpacked(&path, content, access) {
        let temporary = directory.join(format!(".{name}.{}", std::process::id()));
        let written = write_new(&temporary, content, access).and_then(|()| fs::rename(&temporary, &path));
        if let Err(error) = written {
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
    }
    Ok(path)
}

/// Like [`private_directory`], but searchable by everyone: the last two directories of the path, which are selfwind's.
fn public_directory(directory: &Path) -> io::Result<()> {
    const SEARCH_ALL: u32 = 0o111;
    private_directory(directory)?;
    for ours in [directory.parent().unwrap_or(directory), directory] {
        let mode = fs::symlink_metadata(ours)?.mode();
        if mode & SEARCH_ALL != SEARCH_ALL {
            private_directory(ours)?;
            fs::set_permissions(ours, Permissions::from_mode(mode & 0o777 | SEARCH_ALL))?;
        }
    }
    Ok(())
}

/// True if the file exists, belongs to this user, and has exactly the embedded contents.
fn is_unpacked(path: &Path, content: &[u8], access: Access) -> bool {
    let same = || -> io::Result<bool> {
        let mut file = OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file()
            || metadata.uid() != geteuid().as_raw()
            || metadata.mode() & 0o777 != access.mode()
            || metadata.len() != content.len() as u64
        {
            return Ok(false);
        }
        let mut buffer = [0; 16 << 10];
        for part in content.chunks(buffer.len()) {
            let found = &mut buffer[..part.len()];
            file.read_exact(found)?;
            if found != part {
                return Ok(false);
            }
        }
        Ok(true)
    };
    same().unwrap_or(false)
}

impl Access {
    /// The file's mode.
    const fn mode(self) -> u32 {
        match self {
            Access::Private => 0o600,
            Access::Public => 0o644,
        }
    }
}

fn write_new(path: &Path, content: &[u8], access: Access) -> io::Result<()> {
    let _ = fs::remove_file(path);
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    // Independent of the umask.
    file.set_permissions(Permissions::from_mode(access.mode()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("selfwind-agent-file-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn unpacks_once_and_repairs_what_was_changed() {
        let directory = scratch("repair");
        let path = unpack_into(&directory, "a.so", b"one", Access::Private).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o7777, 0o700);
        let inode = fs::metadata(&path).unwrap().ino();
        unpack_into(&directory, "a.so", b"one", Access::Private).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
        fs::write(&path, b"two").unwrap();
        unpack_into(&directory, "a.so", b"one", Access::Private).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        unpack_into(&directory, "a.so", b"one", Access::Private).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn what_is_public_can_be_read_and_not_written() {
        let base = scratch("public");
        fs::create_dir(&base).unwrap();
        fs::set_permissions(&base, Permissions::from_mode(0o700)).unwrap();
        let directory = base.join("agent");
        let path = unpack_into(&directory, "a.so", b"one", Access::Public).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o644);
        for directory in [&base, &directory] {
            assert_eq!(fs::metadata(directory).unwrap().mode() & 0o7777, 0o711);
        }
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        unpack_into(&directory, "a.so", b"one", Access::Public).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o644);
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn refuses_directories_the_loader_or_others_could_spoil() {
        let open = scratch("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(
            unpack_into(&open, "a.so", b"x", Access::Private)
                .unwrap_err()
                .to_string()
                .contains("others may write")
        );
        fs::remove_dir_all(&open).unwrap();
        let link = scratch("link");
        std::os::unix::fs::symlink("/tmp", &link).unwrap();
        assert!(unpack_into(&link, "a.so", b"x", Access::Private).is_err());
        fs::remove_file(&link).unwrap();
        assert!(unpack_into(Path::new("/tmp/a b"), "a.so", b"x", Access::Private).is_err());
        assert!(unpack_into(Path::new("/proc/self"), "a.so", b"x", Access::Private).is_err());
    }
}
