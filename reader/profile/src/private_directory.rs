//! Directories that are this user's alone: any file that another user could replace would be believed.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

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

fn refuse<T>(why: &str) -> io::Result<T> {
    Err(io::Error::other(why.to_owned()))
}
