//! The kernel's view of a thread: what it is doing, and whether a signal would reach the agent's handler.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;

use crate::proc::{Status, beginning_of, set};

/// The state of a thread, from /proc.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadState {
    /// Thread id in the reader's pid namespace.
    pub(crate) tid: u32,
    /// Thread id in its own pid namespace.
    pub(crate) inner_tid: u32,
    /// Its name.
    pub(crate) name: String,
    /// The kernel's letter: R, S, D, T, t, Z, ...
    pub(crate) state: char,
    /// Signals it blocks.
    pub(crate) blocked: u64,
    /// Signals the process has handlers for.
    pub(crate) caught: u64,
    /// Signals waiting for this thread alone.
    pub(crate) pending: u64,
    /// Process that traces it, or 0.
    pub(crate) tracer: u32,
    /// Number of signals queued for its user, and the limit.
    pub(crate) queued: Option<(u64, u64)>,
}

impl ThreadState {
    /// Reads the state of thread `tid` of process `pid`.
    ///
    /// # Errors
    /// If there is no such thread.
    pub(crate) fn read(pid: u32, tid: u32) -> io::Result<Self> {
        Ok(Self::of(tid, &Status::of_text(beginning_of(pid, tid, "status")?)))
    }

    fn of(tid: u32, status: &Status) -> Self {
        let mut state = Self { tid, inner_tid: tid, state: '?', ..Self::default() };
        for (key, value) in status.fields() {
            match key {
                "Name" => state.name = value.to_owned(),
                "State" => state.state = value.chars().next().unwrap_or('?'),
                "TracerPid" => state.tracer = value.parse().unwrap_or(0),
                "NSpid" => {
                    let inner = value.split_ascii_whitespace().next_back();
                    state.inner_tid = inner.and_then(|inner| inner.parse().ok()).unwrap_or(tid);
                }
                "SigQ" => {
                    state.queued = value
                        .split_once('/')
                        .and_then(|(queued, limit)| Some((queued.parse().ok()?, limit.parse().ok()?)));
                }
                "SigPnd" => state.pending = set(value),
                "SigBlk" => state.blocked = set(value),
                "SigCgt" => state.caught = set(value),
                _ => {}
            }
        }
        state
    }

    /// True if the thread blocks all signals, as in the agent's handler and for short times in the agent and the C library: unless it
    /// is asleep, it will soon unblock them.
    pub(super) fn blocks_everything(&self) -> bool {
        // SIGKILL and SIGSTOP cannot be blocked; the C libraries keep the first real-time signals for themselves.
        const APART: u64 = 1 << 8 | 1 << 18 | 0b111 << 31;
        self.blocked | APART == u64::MAX
    }

    /// The kernel's letter in words.
    pub(super) fn activity(&self) -> &'static str {
        match self.state {
            'R' => "running or ready",
            'S' => "sleeping",
            'D' => "in uninterruptible sleep",
            'T' => "stopped",
            't' => "stopped by its tracer",
            'Z' | 'X' => "dead",
            'I' => "idle",
            _ => "in an unknown state",
        }
    }
}

/// The kernel function in which a thread waits; `None` if it does not wait, or permission is denied.
pub(crate) fn wait_channel(pid: u32, tid: u32) -> Option<String> {
    let text = beginning_of(pid, tid, "wchan").ok()?;
    let name = text.trim();
    (!name.is_empty() && name != "0").then(|| name.to_owned())
}

/// The system call in which a thread waits; `None` if it does not wait, or permission is denied.
pub(crate) fn system_call(pid: u32, tid: u32) -> Option<i64> {
    let text = beginning_of(pid, tid, "syscall").ok()?;
    text.split_ascii_whitespace().next()?.parse().ok().filter(|&number| number >= 0)
}

/// The signals that a thread in `rt_sigtimedwait` waits for; all signals if that is unknown. While it waits, the kernel does not
/// report them as blocked.
pub(super) fn awaited(pid: u32, tid: u32) -> u64 {
    let set = || {
        let text = beginning_of(pid, tid, "syscall").ok()?;
        let address = text.split_ascii_whitespace().nth(1)?.strip_prefix("0x")?;
        let mut set = [0; 8];
        let memory = fs::File::open(format!("/proc/{pid}/mem")).ok()?;
        memory.read_exact_at(&mut set, u64::from_str_radix(address, 16).ok()?).ok()?;
        Some(u64::from_le_bytes(set))
    };
    set().unwrap_or(u64::MAX)
}

/// Names of the calls in which threads usually wait (x86-64), and whether a handled signal ends the call with EINTR even
/// under SA_RESTART (signal(7)).
pub(crate) fn waiting_call(number: i64) -> Option<(&'static str, bool)> {
    use nix::libc;
    /// Ended by a signal whatever the handler's flags.
    const ENDS: bool = true;
    /// Restarted after a handler with SA_RESTART.
    const GOES_ON: bool = false;
    Some(match number {
        libc::SYS_read => ("read", GOES_ON),
        libc::SYS_readv => ("readv", GOES_ON),
        libc::SYS_write => ("write", GOES_ON),
        libc::SYS_wait4 => ("wait4", GOES_ON),
        libc::SYS_waitid => ("waitid", GOES_ON),
        libc::SYS_flock => ("flock", GOES_ON),
        libc::SYS_fcntl => ("fcntl", GOES_ON),
        libc::SYS_accept => ("accept", GOES_ON),
        libc::SYS_accept4 => ("accept4", GOES_ON),
        libc::SYS_recvfrom => ("recvfrom", GOES_ON),
        libc::SYS_recvmsg => ("recvmsg", GOES_ON),
        libc::SYS_sendto => ("sendto", GOES_ON),
        libc::SYS_connect => ("connect", GOES_ON),
        // Ends if it has a timeout; C libraries then retry, except for semaphores.
        libc::SYS_futex => ("futex", GOES_ON),
        libc::SYS_poll => ("poll", ENDS),
        libc::SYS_ppoll => ("ppoll", ENDS),
        libc::SYS_select => ("select", ENDS),
        libc::SYS_pselect6 => ("pselect6", ENDS),
        libc::SYS_epoll_wait => ("epoll_wait", ENDS),
        libc::SYS_epoll_pwait => ("epoll_pwait", ENDS),
        libc::SYS_epoll_pwait2 => ("epoll_pwait2", ENDS),
        libc::SYS_nanosleep => ("nanosleep", ENDS),
        libc::SYS_clock_nanosleep => ("clock_nanosleep", ENDS),
        libc::SYS_pause => ("pause", ENDS),
        libc::SYS_rt_sigsuspend => ("rt_sigsuspend", ENDS),
        libc::SYS_rt_sigtimedwait => ("rt_sigtimedwait", ENDS),
        libc::SYS_msgrcv => ("msgrcv", ENDS),
        libc::SYS_msgsnd => ("msgsnd", ENDS),
        libc::SYS_semop => ("semop", ENDS),
        libc::SYS_semtimedop => ("semtimedop", ENDS),
        libc::SYS_io_getevents => ("io_getevents", ENDS),
        libc::SYS_io_uring_enter => ("io_uring_enter", ENDS),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(tid: u32, text: &str) -> ThreadState {
        ThreadState::of(tid, &Status::of_text(text))
    }

    #[test]
    fn a_status_file_is_read() {
        let text = "Name:\tname: odd\nState:\tD (disk sleep)\nTracerPid:\t7\nNSpid:\t900\t12\nSigQ:\t3/31000\n\
                    SigPnd:\t0000000004000000\nSigBlk:\t0000000000000001\nSigCgt:\t0000000004000002\n";
        let state = parse(900, text);
        assert_eq!((state.tid, state.inner_tid, state.state, state.tracer), (900, 12, 'D', 7));
        assert_eq!(state.name, "name: odd");
        assert_eq!((state.pending, state.blocked, state.caught), (1 << 26, 1, 1 << 26 | 2));
        assert_eq!(state.queued, Some((3, 31000)));
        assert_eq!(parse(1, "").inner_tid, 1);
        assert!(!state.blocks_everything());
        assert!(parse(1, "SigBlk:\tfffffffe7ffbfeff\n").blocks_everything());
        assert!(!parse(1, "SigBlk:\tfffffffe77fbfeff\n").blocks_everything());
    }

    #[test]
    fn our_own_threads_are_there() {
        let pid = std::process::id();
        assert_eq!(ThreadState::read(pid, pid).unwrap().inner_tid, pid);
        assert!(ThreadState::read(pid, 0).is_err());
    }
}
