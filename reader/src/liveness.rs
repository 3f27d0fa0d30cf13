//! Whether a process is still the one that was meant. A pid alone does not tell: they are reused.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Follows one process until it ends.
#[derive(Debug)]
pub enum Liveness {
    /// It was there when last asked.
    Running(OwnedFd),
    /// It has ended, or was never there.
    Ended,
}

impl Liveness {
    /// Follows the process `pid` that started at `start_time` (field 22 of its stat file).
    pub fn follow(pid: u32, own_start_time: u64) -> Self {
        let open = || {
            let pidfd = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
            // Opened first, compared second: from here on the descriptor cannot mean another process.
            // A zombie may be the first thread of a process whose other threads live on: the descriptor knows.
            (stat(pid)?.1 == own_start_time).then_some(pidfd)
        };
        open().map_or(Self::Ended, Self::Running)
    }

    /// Asks again.
    pub fn is_running(&mut self) -> bool {
        let Self::Running(pidfd) = self else { return false };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ended = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0);
        if ended {
            *self = Self::Ended;
        }
        !ended
    }
}

/// When a process started, in clock ticks after boot; `None` if there is no such process, or only its zombie.
pub fn start_time(pid: u32) -> Option<u64> {
    let (state, start_time) = stat(pid)?;
    (state != b'Z' && state != b'X').then_some(start_time)
}

fn stat(pid: u32) -> Option<(u8, u64)> {
    parse_stat(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// State and start time. The name before them may hold anything, parentheses too.
fn parse_stat(stat: &[u8]) -> Option<(u8, u64)> {
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 2;
    let mut fields = stat.get(after_name..)?.split(|&byte| byte == b' ');
    let state = *fields.next()?.first()?;
    let start_time = std::str::from_utf8(fields.nth(18)?).ok()?.parse().ok()?;
    Some((state, start_time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_confuse_the_fields() {
        let line = b"12 (a ) (b) R 1 12 12 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 777 99 1\n";
        assert_eq!(parse_stat(line), Some((b'R', 777)));
        assert_eq!(parse_stat(b"12 (x"), None);
        assert_eq!(parse_stat(b"12 (x)"), None);
    }

    #[test]
    fn a_process_is_followed_to_its_end() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let started = start_time(child.id()).unwrap();
        let mut liveness = Liveness::follow(child.id(), started);
        assert!(liveness.is_running() && liveness.is_running());
        assert!(!Liveness::follow(child.id(), started + 1).is_running(), "another process of that number");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!liveness.is_running());
        assert!(!Liveness::follow(child.id(), started).is_running());
        assert!(!Liveness::follow(0, 0).is_running());
    }
}
