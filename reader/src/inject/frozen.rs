//! Every thread of a process, stopped.
//!
//! Each is seized and interrupted, which leaves no trace: a system call it waited in goes on afterwards. The few calls
//! that the kernel fails with EINTR for any stop (signal(7), "Interruption of system calls by stop signals") are set to
//! be made once more, as soon as the thread stands; should a signal have come when it goes on, the EINTR is that
//! signal's. If this process is killed, the kernel lets all go.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use nix::libc::{self, user_regs_struct};
use nix::sys::ptrace::{getregs, setregs};
use nix::unistd::Pid;

use crate::attach::ptrace::{self, Stop};
use crate::inject::InjectError;
use crate::inject::facts::field;

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

/// The stopped threads. Dropping lets them go.
#[derive(Debug)]
pub(super) struct Frozen {
    pid: i32,
    threads: Vec<i32>,
    /// Threads whose system call will be made again, with their registers after the one that failed.
    mended: Vec<(i32, user_regs_struct)>,
}

impl Frozen {
    /// Stops every thread of `pid`, or none.
    pub(super) fn new(pid: i32, deadline: Instant) -> Result<Self, InjectError> {
        let mut frozen = Self { pid, threads: Vec::new(), mended: Vec::new() };
        // A thread that was not listed yet may have been made by one that still ran.
        while frozen.stop_those_that_run(deadline)? {}
        if frozen.threads.is_empty() { Err(InjectError::NoProcess(pid)) } else { Ok(frozen) }
    }

    /// The threads; the first that the kernel lists comes first.
    pub(super) fn threads(&self) -> &[i32] {
        &self.threads
    }

    /// Stops the threads that are listed and not stopped; false if there were none.
    fn stop_those_that_run(&mut self, deadline: Instant) -> Result<bool, InjectError> {
        let mut fresh = Vec::new();
        for tid in tasks(self.pid).map_err(|_| InjectError::NoProcess(self.pid))? {
            if self.threads.contains(&tid) || is_dead(self.pid, tid) {
                continue;
            }
            match ptrace::seize(tid) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) || is_dead(self.pid, tid) => continue,
                Err(error) => return Err(InjectError::denied(self.pid, error)),
            }
            self.threads.push(tid);
            fresh.push(tid);
            // Gone meanwhile: the wait below sees it.
            let _ = ptrace::interrupt(tid);
        }
        for tid in &fresh {
            match wait_until_stopped(*tid, deadline) {
                Ok(true) => self.mended.extend(mend(self.pid, *tid).map(|registers| (*tid, registers))),
                Ok(false) => self.threads.retain(|thread| thread != tid),
                Err(error) => {
                    let thread = *tid;
                    return Err(if error.kind() == io::ErrorKind::TimedOut {
                        InjectError::Unstoppable { pid: self.pid, thread }
                    } else {
                        InjectError::Stopped(self.pid)
                    });
                }
            }
        }
        Ok(!fresh.is_empty())
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
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")) else { return true };
    let set = |name| field(&status, name).and_then(|set| u64::from_str_radix(set, 16).ok()).unwrap_or(0);
    (set("SigPnd:") | set("ShdPnd:")) & !set("SigBlk:") != 0
}

fn tasks(pid: i32) -> io::Result<Vec<i32>> {
    let mut tasks: Vec<i32> = fs::read_dir(format!("/proc/{pid}/task"))?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    tasks.sort_unstable();
    Ok(tasks)
}

/// A first thread that has ended stays listed as a zombie as long as others live.
fn is_dead(pid: i32, tid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
    field(&status, "State:").is_none_or(|state| state.starts_with(['Z', 'X']))
}

impl Frozen {
    /// Lets all go on as if they had never stopped.
    pub(super) fn thaw(self) {
        for (tid, registers) in &self.mended {
            if has_signal(self.pid, *tid) {
                let _ = setregs(Pid::from_raw(*tid), *registers);
            }
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for tid in &self.threads {
            // A thread that did not stop in time cannot be let go of; the kernel does so when we end.
            let _ = ptrace::detach(*tid);
        }
    }
}
