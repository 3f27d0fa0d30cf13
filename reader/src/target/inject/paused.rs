//! One thread of a process, stopped, while the others run on.
//!
//! The thread is seized and interrupted, which leaves no trace: a system call in which it waited continues afterwards. The few calls
//! that the kernel fails with EINTR at any stop (signal(7), "Interruption of system calls by stop signals") are set up to be made
//! again once the thread has stopped; if a signal has arrived by the time it continues, the EINTR is due to that signal. If the
//! tracer, a separate thread, ends or is killed, the kernel detaches the thread, even one in an uninterruptible wait, which would
//! otherwise stop at the end of that wait.

use std::io;
use std::time::{Duration, Instant};

use nix::libc::{self, user_regs_struct};
use nix::sys::ptrace::{getregs, setregs};
use nix::unistd::Pid;

use crate::proc::{Status, threads};
use crate::target::attach::ptrace::{self, Stop};
use crate::target::inject::error::InjectError;

/// How often to check whether a thread has stopped.
const POLL_EVERY: Duration = Duration::from_micros(100);

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

/// A stopped thread. Dropping this detaches from it.
#[derive(Debug)]
pub(super) struct Paused {
    pid: i32,
    tid: i32,
    /// Its registers after a system call that failed and will be made again.
    repeated_call: Option<Box<user_regs_struct>>,
}

/// The result of stopping a thread.
#[derive(Debug)]
pub(super) enum Stopped {
    /// It has stopped.
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
        let mut paused = Self { pid, tid, repeated_call: None };
        // It may have ended: the wait below notices.
        let _ = ptrace::interrupt(tid);
        match wait_until_stopped(tid, deadline) {
            Ok(true) => {
                paused.repeated_call = mend(pid, tid).map(Box::new);
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

/// The threads of `pid` in the order in which to try them: the main thread, whose stack is known, then the others, and last those
/// in an uninterruptible wait, which do not stop at once.
pub(super) fn candidates(pid: i32) -> Result<Vec<i32>, InjectError> {
    /// Maximum number of threads to check.
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

/// Waits until an interrupted thread has stopped; false if it has ended. Pending signals are delivered.
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
            Ok(Stop::Running) => std::thread::sleep(POLL_EVERY),
        }
    }
}

/// Makes a stopped thread repeat a system call that failed because of the stop. Returns its registers before the change.
fn mend(pid: i32, tid: i32) -> Option<user_regs_struct> {
    let thread = Pid::from_raw(tid);
    let original = getregs(thread).ok()?;
    let mut registers = original;
    let call = registers.orig_rax as i64;
    let failed = registers.rax as i64 == -i64::from(libc::EINTR) && RESTARTED.contains(&call);
    if !failed || has_signal(pid, tid) {
        return None;
    }
    // Back over the two bytes of the `syscall` instruction, with its number in rax again.
    registers.rip -= 2;
    registers.rax = registers.orig_rax;
    registers.orig_rax = u64::MAX;
    setregs(thread, registers).ok().map(|()| original)
}

/// True if a signal that the thread does not block is pending.
fn has_signal(pid: i32, tid: i32) -> bool {
    let Ok(status) = Status::of_thread(pid, tid) else { return true };
    (status.set("SigPnd") | status.set("ShdPnd")) & !status.set("SigBlk") != 0
}

/// A main thread that has ended stays listed as a zombie while others are running.
fn is_dead(pid: i32, tid: i32) -> bool {
    matches!(state(pid, tid), None | Some('Z' | 'X'))
}

/// The kernel's letter for the thread's state.
fn state(pid: i32, tid: i32) -> Option<char> {
    Status::of_thread(pid, tid).ok()?.state()
}

impl Drop for Paused {
    fn drop(&mut self) {
        if let Some(registers) = self.repeated_call.take()
            && has_signal(self.pid, self.tid)
        {
            let _ = setregs(Pid::from_raw(self.tid), *registers);
        }
        // A thread that did not stop cannot be detached; the kernel does that when this tracing thread ends.
        let _ = ptrace::detach(self.tid);
    }
}
