//! The embedded agent as a file that a loader can preload.
//!
//! Unpacked once per content into a directory of the user's own: any file that another user could replace
//! would run in every profiled program.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::geteuid;

static AGENT: &[u8] = include_bytes!(env!("SELFWIND_AGENT_FILE"));

/// Why there is no agent to preload.
#[derive(Debug, thiserror::Error)]
pub enum AgentFileError {
    /// Built with SELFWIND_SKIP_AGENT=1.
    #[error(
        "this selfwind was built with SELFWIND_SKIP_AGENT=1 and holds no agent; build it again without that variable"
    )]
    NotEmbedded,
    /// No directory would do.
    #[error(
        "no place for the agent ({tried}); set XDG_CACHE_HOME to a directory of yours that is not mounted noexec"
    )]
    NoPlace {
        /// Each directory tried and what was wrong with it.
        tried: String,
    },
}

/// The agent's file, if one is embedded.
pub fn content() -> Option<&'static [u8]> {
    (!AGENT.is_empty()).then_some(AGENT)
}

/// Unpacks the agent when that has not been done yet, and says where it is.
pub fn unpack() -> Result<PathBuf, AgentFileError> {
    if AGENT.is_empty() {
        return Err(AgentFileError::NotEmbedded);
    }
    let name = concat!("agent-", env!("CARGO_PKG_VERSION"), "-", env!("SELFWIND_AGENT_HASH"), ".so");
    let mut tried = Vec::new();
    for directory in candidates() {
        match unpack_into(&directory, name, AGENT) {
            Ok(path) => return Ok(path),
            Err(error) => tried.push(format!("{}: {error}", directory.display())),
        }
    }
    Err(AgentFileError::NoPlace { tried: tried.join("; ") })
}

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
        .chain([PathBuf::from(format!("/tmp/selfwind-{}", geteuid()))])
        .collect()
}

fn refuse<T>(why: &str) -> io::Result<T> {
    Err(io::Error::other(why.to_owned()))
}

fn unpack_into(directory: &Path, name: &str, content: &[u8]) -> io::Result<PathBuf> {
    // The loader splits LD_PRELOAD at both.
    if directory.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte)) {
        return refuse("a space or a colon in the name");
    }
    private_directory(directory)?;
    if statvfs(directory)?.flags().contains(FsFlags::ST_NOEXEC) {
        return refuse("mounted noexec");
    }
    let path = directory.join(name);
    if !is_unpacked(&path, content) {
        let temporary = directory.join(format!(".{name}.{}", std::process::id()));
        let written = write_new(&temporary, content).and_then(|()| fs::rename(&temporary, &path));
        if let Err(error) = written {
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
    }
    Ok(path)
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

/// True if the file is there, ours alone, and byte for byte the embedded one.
fn is_unpacked(path: &Path, content: &[u8]) -> bool {
    let same = || -> io::Result<bool> {
        let mut file = OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file()
            || metadata.uid() != geteuid().as_raw()
            || metadata.mode() & 0o077 != 0
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

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let _ = fs::remove_file(path);
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("selfwind-agent-file-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn unpacks_once_and_repairs_what_was_changed() {
        let directory = scratch("repair");
        let path = unpack_into(&directory, "a.so", b"one").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o7777, 0o700);
        let inode = fs::metadata(&path).unwrap().ino();
        unpack_into(&directory, "a.so", b"one").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
        fs::write(&path, b"two").unwrap();
        unpack_into(&directory, "a.so", b"one").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        unpack_into(&directory, "a.so", b"one").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn refuses_directories_the_loader_or_others_could_spoil() {
        let open = scratch("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(unpack_into(&open, "a.so", b"x").unwrap_err().to_string().contains("others may write"));
        fs::remove_dir_all(&open).unwrap();
        let link = scratch("link");
        std::os::unix::fs::symlink("/tmp", &link).unwrap();
        assert!(unpack_into(&link, "a.so", b"x").is_err());
        fs::remove_file(&link).unwrap();
        assert!(unpack_into(Path::new("/tmp/a b"), "a.so", b"x").is_err());
        assert!(unpack_into(Path::new("/proc/self"), "a.so", b"x").is_err());
    }
}
