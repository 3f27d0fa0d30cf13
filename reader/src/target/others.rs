//! The directory for regions of other users' processes, when root records.
//!
//! A program started by root may switch to another user and execute a program that can neither enter root's session directory
//! nor create files in it. So root's sessions have a second directory in which anyone can create files but not list, remove or
//! replace those of others (01733), with its own doorbell, which signals the end of the recording. Regions in it are not trusted,
//! like any others, and belong to the owner of the file.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use crate::target::attach::Doorbell;
use crate::target::attach::owner::OPEN_TO_ALL;
use crate::target::session_directory::{self, DOORBELL};

/// The parent of these directories.
const BASE: &str = "/dev/shm/selfwind-others";
const A_MINUTE: Duration = Duration::from_secs(60);

/// A session's directory for other users.
pub(crate) struct Others {
    directory: PathBuf,
    doorbell: Doorbell,
    /// Keeps the lock.
    _doorbell_file: File,
}

impl Others {
    /// Creates one for the session with this nonce, if the recorder is root: only root can switch to other users.
    pub(crate) fn create(nonce: u64) -> Option<Self> {
        geteuid().is_root().then(|| Self::create_in(Path::new(BASE), nonce).ok()).flatten()
    }

    fn create_in(base: &Path, nonce: u64) -> io::Result<Self> {
        match DirBuilder::new().mode(0o755).create(base) {
            // Independent of the umask.
            Ok(()) => fs::set_permissions(base, Permissions::from_mode(0o755))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        if !session_directory::is_ours(base) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let directory = base.join(format!("{nonce:016x}"));
        DirBuilder::new().mode(0o700).create(&directory)?;
        let made = || {
            let flags = OFlag::O_NOFOLLOW.bits();
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600).custom_flags(flags);
            let file = options.open(directory.join(DOORBELL))?;
            session_directory::take(&file)?;
            let doorbell = Doorbell::in_file(&file)?;
            file.set_permissions(Permissions::from_mode(0o666))?;
            fs::set_permissions(&directory, Permissions::from_mode(OPEN_TO_ALL))?;
            Ok((doorbell, file))
        };
        match made() {
            Ok((doorbell, file)) => Ok(Self { directory, doorbell, _doorbell_file: file }),
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

/// Removes the directories of recorders that were killed. Nobody else finds the regions there.
pub(crate) fn reap_abandoned() {
    reap_in(Path::new(BASE), A_MINUTE);
}

/// The same for those of a certain age, in which their recorders have locked their doorbells.
fn reap_in(base: &Path, age: Duration) {
    let entries = if session_directory::is_ours(base) { fs::read_dir(base).ok() } else { None };
    for entry in entries.into_iter().flatten().flatten() {
        let changed = entry.metadata().and_then(|metadata| metadata.modified());
        let is_old = changed.is_ok_and(|time| time.elapsed().is_ok_and(|passed| passed >= age));
        if is_old && !session_directory::is_recorded(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn anybody_may_make_files_and_none_is_listed() {
        let base = std::env::temp_dir().join(format!("selfwind-others-{}", std::process::id()));
        let others = Others::create_in(&base, 7).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(&base), mode(others.directory())), (0o755, OPEN_TO_ALL));
        assert_eq!(mode(&others.directory().join("doorbell")), 0o666);
        reap_in(&base, Duration::ZERO);
        assert!(others.directory().exists(), "its recorder is running");
        let directory = others.directory().to_owned();
        drop(others);
        reap_in(&base, A_MINUTE);
        assert!(directory.exists(), "it may not be locked yet");
        reap_in(&base, Duration::ZERO);
        assert!(!directory.exists());
        let others = Others::create_in(&base, 7).unwrap();
        others.remove();
        assert!(!others.directory().exists());
        fs::set_permissions(&base, Permissions::from_mode(0o777)).unwrap();
        assert!(Others::create_in(&base, 8).is_err());
        fs::remove_dir_all(&base).unwrap();
    }
}
