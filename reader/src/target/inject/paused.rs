//! One thread of a process, stopped, while the others run on.
//!
//! It is seized and interrupted, which leaves no trace: a system call it waited in goes on afterwards. The few calls
//! that the kernel fails with EINTR for any stop (signal(7), "Interruption of system calls by stop signals") are set to
//! be made once more, as soon as the thread stands; should a signal have come when it goes on, the EINTR is that
//! signal's. If the tracer, a thread of its own, ends or is killed, the kernel lets go of it: also of a thread in an
//! uninterruptible wait, which would otherwise stop at its end.

use std::io;
use std::time::{Duration, Instant};

use nix::libc::{self, user_regs_struct};
use nix::sys::ptrace::{getregs, setregs};
use nix::unistd::Pid;

use crate::proc::{Status, threads};
use crate::target::attach::ptrace::{self, Stop};
use crate::target::inject::refusal::InjectError;

/// Between two looks at whether a thread has stopped.
const LOOK: Duration = Duration::from_micros(100);

/// System calls that transfer all or nothing, and that the kernel does not restart after a stop.
const RESTARTED: [libc::c_long; 16] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
];

/// The stopped thread. Dropping lets it go.
#[derive(Debug)]
pub(super) struct Paused {
    pid: i32,
    tid: i32,
    /// Its registers after a system call that failed, if that will be made again.
    mended: Option<Box<user_regs_struct>>,
}

/// What came of stopping a thread.
#[derive(Debug)]
pub(super) enum Stopped {
    /// It stands.
    Paused(Paused),
    /// It has ended.
    Gone,
    /// It did not stop in time.
    Late,
}

impl Paused {
    /// Stops thread `tid` of `pid`.
    pub(super) fn stop(pid: i32, tid: i32, deadline: Instant) -> Result<Stopped, InjectError> {
        match ptrace::seize(tid) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) || is_dead(pid, tid) => {
                return Ok(Stopped::Gone);
            }
            Err(error) => return Err(InjectError::denied(pid, error)),
        }
        let mut paused = Self { pid, tid, mended: None };
        // Gone meanwhile: the wait below sees it.
        let _ = ptrace::interrupt(tid);
        match wait_until_stopped(tid, deadline) {
            Ok(true) => {
                paused.mended = mend(pid, tid).map(Box::new);
                Ok(Stopped::Paused(paused))
            }
            Ok(false) => Ok(Stopped::Gone),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(Stopped::Late),
            Err(_) => Err(InjectError::Stopped(pid)),
        }
    }

    /// The thread.
    pub(super) fn tid(&self) -> i32 {
        self.tid
    }
}

/// The threads of `pid`, those first that stop at once and whose stack is known: the first thread, then the others, at
/// last those in an uninterruptible wait.
pub(super) fn candidates(pid: i32) -> Result<Vec<i32>, InjectError> {
    /// So many are looked at.
    const ENOUGH: usize = 64;
    let tasks = threads(pid as u32).map_err(|_| InjectError::NoProcess(pid))?;
    let mut found: Vec<(bool, i32)> = tasks
        .into_iter()
        .map(|tid| tid as i32)
        .take(ENOUGH)
        .filter_map(|tid| match state(pid, tid) {
            None | Some('Z' | 'X') => None,
            state => Some((state == Some('D'), tid)),
        })
        .collect();
    found.sort_by_key(|(waits, _)| *waits);
    if found.is_empty() {
        Err(InjectError::NoProcess(pid))
    } else {
        Ok(found.into_iter().map(|(_, tid)| tid).collect())
    }
}

/// Waits until an interrupted thread stands still; false if it has ended. Signals on their way are let through.
pub(super) fn wait_until_stopped(tid: i32, deadline: Instant) -> io::Result<bool> {
    loop {
        match ptrace::wait(tid) {
            Ok(Stop::Interrupted) => return Ok(true),
            Ok(Stop::Ended) | Err(_) => return Ok(false),
            Ok(Stop::Group) => return Err(io::ErrorKind::Other.into()),
            Ok(Stop::Signal(signal)) => {
                let _ = ptrace::cont(tid, signal).and_then(|()| ptrace::interrupt(tid));
            }
            Ok(Stop::SystemCall) => {
                let _ = ptrace::cont(tid, 0).and_then(|()| ptrace::interrupt(tid));
            }
            Ok(Stop::Running) if Instant::now() > deadline => return Err(io::ErrorKind::TimedOut.into()),
            Ok(Stop::Running) => std::thread::sleep(LOOK),
        }
    }
}

/// Has a stopped thread make a system call again that the stop has failed; its registers before that.
fn mend(pid: i32, tid: i32) -> Option<user_regs_struct> {
    let thread = Pid::from_raw(tid);
    let original = getregs(thread).ok()?;
    let mut registers = original;
    let call = registers.orig_rax as i64;
    let failed = registers.rax as i64 == -i64::from(libc::EINTR) && RESTARTED.contains(&call);
    if !failed || has_signal(pid, tid) {
        return None;
    }
    // Over the two bytes of the `syscall` instruction, back to the number it takes.
    registers.rip -= 2;
    registers.rax = registers.orig_rax;
    registers.orig_rax = u64::MAX;
    setregs(thread, registers).ok().map(|()| original)
}

/// True if a signal that the thread does not block waits for it.
fn has_signal(pid: i32, tid: i32) -> bool {
    let Ok(status) = Status::of_thread(pid, tid) else { return true };
    (status.set("SigPnd") | status.set("ShdPnd")) & !status.set("SigBlk") != 0
}

/// A first thread that has ended stays listed as a zombie as long as others live.
fn is_dead(pid: i32, tid: i32) -> bool {
    matches!(state(pid, tid), None | Some('Z' | 'X'))
}

/// The kernel's letter for what the thread does.
fn state(pid: i32, tid: i32) -> Option<char> {
    Status::of_thread(pid, tid).ok()?.state()
}

impl Drop for Paused {
    fn drop(&mut self) {
        if let Some(registers) = self.mended.take()
            && has_signal(self.pid, self.tid)
        {
            let _ = setregs(Pid::from_raw(self.tid), *registers);
        }
        // A thread that did not stop in time cannot be let go of; the kernel does so when this thread ends.
        let _ = ptrace::detach(self.tid);
    }
}
