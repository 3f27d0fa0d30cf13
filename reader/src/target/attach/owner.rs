//! Whose regions may be in a directory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::geteuid;

/// The mode of root's directory in which every user may create regions: sticky, and not listable by others.
pub(crate) const OPEN_TO_ALL: u32 = 0o1733;

/// True if regions in `directory` may belong to any user.
pub(crate) fn is_open_to_all(directory: &Path) -> bool {
    geteuid().is_root()
        && fs::symlink_metadata(directory).is_ok_and(|metadata| {
            metadata.is_dir() && metadata.uid() == 0 && metadata.mode() & 0o7777 == OPEN_TO_ALL
        })
}
