//! Where a thread is blocked: `/proc/PID/task/TID/syscall` (proc(5)).
//!
//! The kernel does not write the line if the thread has run in the meantime. Reading it requires the permission to trace: the
//! same user, a dumpable process, and under Yama (ptrace_scope 1) an ancestor.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use syscalls::Sysno;

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
    match Sysno::new(call.into()) {
        _ if call == NO_CALL => "[blocked: page fault]".into(),
        Some(known) => format!("[blocked: {known}]").into(),
        None => format!("[blocked: system call {call}]").into(),
    }
}

#[cfg(test)]
mod tests {
    use nix::libc;

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
        assert_eq!(name(libc::SYS_epoll_pwait2 as u16), "[blocked: epoll_pwait2]");
        assert_eq!(name(NO_CALL), "[blocked: page fault]");
        assert_eq!(name(4000), "[blocked: system call 4000]");
    }
}
