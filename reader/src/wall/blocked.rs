//! Where a thread is blocked: `/proc/PID/task/TID/syscall` (proc(5)).
//!
//! The kernel does not write the line if the thread has run in the meantime. Reading it requires the permission to trace: the
//! same user, a dumpable process, and under Yama (ptrace_scope 1) an ancestor.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::libc;

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is running or runnable.
    Runs,
    /// It is blocked.
    Blocked(Blocked),
}

/// A thread that is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocked {
    /// The system call it is in; `None` for a page fault.
    pub(super) call: Option<u16>,
    /// Its stack pointer and its next instruction, in user mode.
    pub(super) sp: u64,
    pub(super) pc: u64,
}

impl State {
    /// Reads the file.
    ///
    /// # Errors
    /// If the thread has ended, or permission is denied.
    pub(super) fn read(file: &File) -> io::Result<Self> {
        let mut text = [0; 256];
        let len = file.read_at(&mut text, 0)?;
        let text = std::str::from_utf8(&text[..len]).unwrap_or_default();
        Self::parse(text).ok_or_else(|| io::Error::other(format!("not understood: {text}")))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let call = match words.next()? {
            "running" => return Some(Self::Runs),
            number => number.parse::<i64>().ok()?,
        };
        let mut last = words.rev();
        let mut address = || u64::from_str_radix(last.next()?.strip_prefix("0x")?, 16).ok();
        let (pc, sp) = (address()?, address()?);
        Some(Self::Blocked(Blocked { call: u16::try_from(call).ok(), sp, pc }))
    }
}

/// Stands for a page fault in place of a system call number.
pub(super) const NO_CALL: u16 = u16::MAX;

/// The name of the marker frame for this system call.
pub(super) fn name(call: u16) -> Cow<'static, str> {
    let known = CALLS.iter().find(|(number, _)| *number == i64::from(call));
    match known {
        _ if call == NO_CALL => "[blocked: page fault]".into(),
        Some((_, name)) => format!("[blocked: {name}]").into(),
        None => format!("[blocked: system call {call}]").into(),
    }
}

/// System calls in which threads wait.
const CALLS: [(i64, &str); 50] = [
    (libc::SYS_futex, "futex"),
    (libc::SYS_clock_nanosleep, "clock_nanosleep"),
    (libc::SYS_nanosleep, "nanosleep"),
    (libc::SYS_epoll_pwait, "epoll_pwait"),
    (libc::SYS_epoll_pwait2, "epoll_pwait2"),
    (libc::SYS_ppoll, "ppoll"),
    (libc::SYS_pselect6, "pselect6"),
    (libc::SYS_read, "read"),
    (libc::SYS_write, "write"),
    (libc::SYS_readv, "readv"),
    (libc::SYS_writev, "writev"),
    (libc::SYS_pread64, "pread64"),
    (libc::SYS_pwrite64, "pwrite64"),
    (libc::SYS_preadv, "preadv"),
    (libc::SYS_pwritev, "pwritev"),
    (libc::SYS_recvfrom, "recvfrom"),
    (libc::SYS_recvmsg, "recvmsg"),
    (libc::SYS_recvmmsg, "recvmmsg"),
    (libc::SYS_sendto, "sendto"),
    (libc::SYS_sendmsg, "sendmsg"),
    (libc::SYS_accept, "accept"),
    (libc::SYS_accept4, "accept4"),
    (libc::SYS_connect, "connect"),
    (libc::SYS_wait4, "wait4"),
    (libc::SYS_waitid, "waitid"),
    (libc::SYS_rt_sigtimedwait, "rt_sigtimedwait"),
    (libc::SYS_rt_sigsuspend, "rt_sigsuspend"),
    (libc::SYS_semop, "semop"),
    (libc::SYS_semtimedop, "semtimedop"),
    (libc::SYS_msgrcv, "msgrcv"),
    (libc::SYS_msgsnd, "msgsnd"),
    (libc::SYS_mq_timedreceive, "mq_timedreceive"),
    (libc::SYS_mq_timedsend, "mq_timedsend"),
    (libc::SYS_fsync, "fsync"),
    (libc::SYS_fdatasync, "fdatasync"),
    (libc::SYS_sync, "sync"),
    (libc::SYS_openat, "openat"),
    (libc::SYS_flock, "flock"),
    (libc::SYS_fcntl, "fcntl"),
    (libc::SYS_io_getevents, "io_getevents"),
    (libc::SYS_io_uring_enter, "io_uring_enter"),
    (libc::SYS_splice, "splice"),
    (libc::SYS_sendfile, "sendfile"),
    (libc::SYS_getdents64, "getdents64"),
    (libc::SYS_restart_syscall, "restart_syscall"),
    (libc::SYS_clone, "clone"),
    // Only on x86-64; elsewhere the C library uses the newer calls.
    (7, "poll"),
    (23, "select"),
    (34, "pause"),
    (232, "epoll_wait"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel() {
        let at = |call| State::Blocked(Blocked { call, sp: 0x7ffc_0010, pc: 0x7f00_1234 });
        for (text, state) in [
            ("running\n", Some(State::Runs)),
            ("202 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffc0010 0x7f001234\n", Some(at(Some(202)))),
            ("-1 0x7ffc0010 0x7f001234\n", Some(at(None))),
            ("202 0x1\n", None),
            ("", None),
            ("x 0x1 0x2", None),
        ] {
            assert_eq!(State::parse(text), state, "{text}");
        }
    }

    #[test]
    fn waits_have_names() {
        assert_eq!(name(libc::SYS_futex as u16), "[blocked: futex]");
        assert_eq!(name(NO_CALL), "[blocked: page fault]");
        assert_eq!(name(4000), "[blocked: system call 4000]");
    }
}
