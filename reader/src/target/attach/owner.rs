//! Whose a region may be.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::geteuid;

/// The mode of a directory of root's in which every user may leave regions: sticky, and without its list for others.
pub(crate) const OPEN_TO_ALL: u32 = 0o1733;

/// True if regions in `directory` may belong to anybody.
pub(crate) fn is_open_to_all(directory: &Path) -> bool {
    geteuid().is_root()
        && fs::symlink_metadata(directory).is_ok_and(|metadata| {
            metadata.is_dir() && metadata.uid() == 0 && metadata.mode() & 0o7777 == OPEN_TO_ALL
        })
}
