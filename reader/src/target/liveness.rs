//! Tells whether a process is still running. A pid alone is not enough, as pids are reused.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::proc::Stat;
use crate::target::shortage;

/// Follows one process until it ends.
#[derive(Debug)]
pub(crate) enum Liveness {
    /// It was running when last checked.
    Running(OwnedFd),
    /// The same, without a pidfd: pid and start time.
    Unwatched(u32, u64),
    /// It has ended, or never existed.
    Ended,
}

impl Liveness {
    /// Follows the process `pid` that started at `start_time` (field 22 of its stat file).
    pub(crate) fn follow(pid: u32, own_start_time: u64) -> Self {
        let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Self::Ended };
        match pidfd_open(process, PidfdFlags::empty()) {
            // Opened before comparing: from here on the descriptor cannot refer to another process.
            // A zombie may be the main thread of a process whose other threads are still running; the pidfd knows.
            Ok(pidfd) if is_that(pid, own_start_time) => Self::Running(pidfd),
            Ok(_) | Err(Errno::SRCH) => Self::Ended,
            // No descriptors are left, or the kernel has no pidfds.
            Err(_) if is_that(pid, own_start_time) => Self::Unwatched(pid, own_start_time),
            Err(_) => Self::Ended,
        }
    }

    /// Checks again.
    pub(crate) fn is_running(&mut self) -> bool {
        let ended = match self {
            Self::Running(pidfd) => {
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
            }
            Self::Unwatched(pid, start_time) => !is_that(*pid, *start_time),
            Self::Ended => return false,
        };
        if ended {
            *self = Self::Ended;
        }
        !ended
    }
}

/// True if the process `pid` started at that time and has threads, as far as can be determined.
fn is_that(pid: u32, own_start_time: u64) -> bool {
    match Stat::of(pid) {
        Ok(stat) => stat
            .is_some_and(|stat| stat.start_time == own_start_time && (stat.threads > 1 || !stat.is_zombie())),
        // No descriptor is left to read the file. A zombie has no such link.
        Err(error) if shortage::is_passing(&error) => {
            let link = std::fs::read_link(format!("/proc/{pid}/exe"));
            !link.is_err_and(|error| error.kind() == ErrorKind::NotFound)
        }
        Err(_) => false,
    }
}

/// The id of the current boot, in the agent's format.
pub(crate) fn boot_id() -> Option<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::start_time;

    #[test]
    fn a_process_is_followed_to_its_end() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let started = start_time(child.id()).unwrap();
        let mut liveness = Liveness::follow(child.id(), started);
        assert!(liveness.is_running() && liveness.is_running());
        assert!(!Liveness::follow(child.id(), started + 1).is_running(), "another process of that number");
        let mut unwatched = Liveness::Unwatched(child.id(), started);
        assert!(unwatched.is_running());
        child.kill().unwrap();
        while start_time(child.id()).is_some() {}
        assert!(!unwatched.is_running(), "a zombie has ended");
        child.wait().unwrap();
        assert!(!liveness.is_running());
        assert!(!Liveness::follow(child.id(), started).is_running());
        assert!(!Liveness::follow(0, 0).is_running());
    }
}
