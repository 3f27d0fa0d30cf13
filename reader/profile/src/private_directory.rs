//! Directories private to this user, and the files in them. They must be private because their files are trusted.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

/// The cache directory of this user.
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

/// Creates `directory` (mode 0700) if it does not exist, and checks that no other user can write to it.
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

/// Reads a file of at most `limit` bytes in a private directory, and updates its modification time, by which the least recently
/// used files are found.
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
    // A failure is harmless.
    let _ = file.set_modified(SystemTime::now());
    Ok(bytes)
}

/// Atomically writes a file in a private directory, which is created if it does not exist.
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
