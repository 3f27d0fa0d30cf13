//! The directory for regions of other users' processes, when root records.
//!
//! A program started by root may switch to another user and execute a program that can neither enter root's session directory
//! nor create files in it. So root's sessions have a second directory in which anyone can create files but not list, remove or
//! replace those of others (01733), with its own doorbell, which signals the end of the recording. Regions in it are not trusted,
//! like any others, and belong to the owner of the file.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use crate::target::attach::Doorbell;
use crate::target::attach::owner::OPEN_TO_ALL;

/// The parent of these directories.
const BASE: &str = "/dev/shm/selfwind-others";

/// A session's directory for other users.
pub(crate) struct Others {
    directory: PathBuf,
    doorbell: Doorbell,
}

impl Others {
    /// Creates one for the session with this nonce, if the recorder is root: only root can switch to other users.
    pub(crate) fn create(nonce: u64, doorbell: &str) -> Option<Self> {
        geteuid().is_root().then(|| Self::create_in(Path::new(BASE), nonce, doorbell).ok()).flatten()
    }

    fn create_in(base: &Path, nonce: u64, doorbell: &str) -> io::Result<Self> {
        match DirBuilder::new().mode(0o755).create(base) {
            // Independent of the umask.
            Ok(()) => fs::set_permissions(base, Permissions::from_mode(0o755))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let metadata = fs::symlink_metadata(base)?;
        if !metadata.is_dir() || metadata.uid() != geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let directory = base.join(format!("{nonce:016x}"));
        DirBuilder::new().mode(0o700).create(&directory)?;
        let made = || {
            let flags = OFlag::O_NOFOLLOW.bits();
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600).custom_flags(flags);
            let file = options.open(directory.join(doorbell))?;
            let doorbell = Doorbell::in_file(&file)?;
            file.set_permissions(Permissions::from_mode(0o666))?;
            fs::set_permissions(&directory, Permissions::from_mode(OPEN_TO_ALL))?;
            Ok(doorbell)
        };
        match made() {
            Ok(doorbell) => Ok(Self { directory, doorbell }),
            Err(error) => {
                let _ = fs::remove_dir_all(&directory);
                Err(error)
            }
        }
    }

    /// Its path.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Signals these processes that the recording has ended.
    pub(crate) fn stop(&self) {
        self.doorbell.stop();
    }

    /// Removes the directory. Processes that are still mapped there keep their memory and nothing else.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anybody_may_make_files_and_none_is_listed() {
        let base = std::env::temp_dir().join(format!("selfwind-others-{}", std::process::id()));
        let others = Others::create_in(&base, 7, "doorbell").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(&base), mode(others.directory())), (0o755, OPEN_TO_ALL));
        assert_eq!(mode(&others.directory().join("doorbell")), 0o666);
        others.remove();
        assert!(!others.directory().exists());
        fs::set_permissions(&base, Permissions::from_mode(0o777)).unwrap();
        assert!(Others::create_in(&base, 8, "doorbell").is_err());
        fs::remove_dir_all(&base).unwrap();
    }
}
