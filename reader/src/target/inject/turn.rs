//! One recorder at a time decides about a process: whether it has to be attached to, and whose attachment that is.
//!
//! Between examining the process and locking its region, another recorder might attach, find the region locked, and undo
//! the attachment that both use. The lock is on the process's directory in /proc: it leaves no file behind, and is released
//! when its holder ends. What must never happen: that a recorder waits forever for somebody who holds it.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

/// Others have their turn for no longer: an attach takes milliseconds, seconds on a machine without free processors.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts.
const GLANCE: Duration = Duration::from_millis(5);

/// The right to begin or end the sampling of a process, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    /// None: the process is gone, or somebody has held it for too long.
    _directory: Option<File>,
}

impl Turn {
    /// Waits until no other recorder begins or ends the sampling of `pid`.
    pub(crate) fn at(pid: u32) -> Self {
        Self { _directory: Self::lock(pid, PATIENCE).ok() }
    }

    fn lock(pid: u32, patience: Duration) -> io::Result<File> {
        let directory = File::open(format!("/proc/{pid}"))?;
        let deadline = Instant::now() + patience;
        loop {
            match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(directory),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(GLANCE),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_at_a_time_and_nobody_for_ever() {
        let own = std::process::id();
        let shortly = Duration::from_millis(20);
        let first = Turn::at(own);
        assert!(Turn::lock(own, shortly).is_err());
        drop(first);
        assert!(Turn::lock(own, shortly).is_ok());
        assert!(Turn::lock(u32::MAX, shortly).is_err());
    }
}
