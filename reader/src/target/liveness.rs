//! Whether a process is still the one that was meant. A pid alone does not tell: they are reused.

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
    /// It was there when last asked.
    Running(OwnedFd),
    /// The same, and nothing tells of its end: pid and start time.
    Unwatched(u32, u64),
    /// It has ended, or was never there.
    Ended,
}

impl Liveness {
    /// Follows the process `pid` that started at `start_time` (field 22 of its stat file).
    pub(crate) fn follow(pid: u32, own_start_time: u64) -> Self {
        let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Self::Ended };
        match pidfd_open(process, PidfdFlags::empty()) {
            // Opened first, compared second: from here on the descriptor cannot mean another process.
            // A zombie may be the first thread of a process whose other threads live on: the descriptor knows.
            Ok(pidfd) if is_that(pid, own_start_time) => Self::Running(pidfd),
            Ok(_) | Err(Errno::SRCH) => Self::Ended,
            // No descriptor is left, or there are none in this kernel.
            Err(_) if is_that(pid, own_start_time) => Self::Unwatched(pid, own_start_time),
            Err(_) => Self::Ended,
        }
    }

    /// Asks again.
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

/// True if the process `pid` is the one that started then and has threads, as far as can be seen.
fn is_that(pid: u32, own_start_time: u64) -> bool {
    match Stat::of(pid) {
        Ok(stat) => stat
            .is_some_and(|stat| stat.start_time == own_start_time && (stat.threads > 1 || !stat.is_zombie())),
        // No descriptor is left to read it with. The link of a zombie is not there.
        Err(error) if shortage::is_passing(&error) => {
            let link = std::fs::read_link(format!("/proc/{pid}/exe"));
            !link.is_err_and(|error| error.kind() == ErrorKind::NotFound)
        }
        Err(_) => false,
    }
}

/// This boot, as agents name it.
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
