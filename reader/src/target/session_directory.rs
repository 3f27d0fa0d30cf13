//! What the directories of a session have in common: their owner, and the lock that the running recorder holds on the doorbell,
//! which distinguishes them from those that a killed recorder has left behind.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use rustix::fs::{FlockOperation, flock};

/// File name of the doorbell in a directory of a session.
pub(super) const DOORBELL: &str = "doorbell";

/// Takes the lock of this doorbell, for as long as the file is open.
pub(super) fn take(doorbell: &File) -> rustix::io::Result<()> {
    flock(doorbell, FlockOperation::NonBlockingLockExclusive)
}

/// True while the recorder of this directory is running.
pub(crate) fn is_recorded(directory: &Path) -> bool {
    let open = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NOFOLLOW.bits() | OFlag::O_NONBLOCK.bits())
        .open(directory.join(DOORBELL));
    open.is_ok_and(|file| take(&file).is_err())
}

/// Whether this is a directory of this user in which nobody else can make or replace files.
pub(super) fn is_ours(directory: &Path) -> bool {
    fs::symlink_metadata(directory)
        .is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0)
}
