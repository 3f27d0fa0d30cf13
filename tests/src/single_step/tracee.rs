//! A program under ptrace: started stopped at its first instruction, stepped one instruction at a time.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, IoSliceMut};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::sys::personality::{self, Persona};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// The general registers as ptrace delivers them.
pub type Registers = libc::user_regs_struct;

/// What a wait on the tracee brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A thread executed its instruction, or reached the first one of a signal handler.
    Step(Pid),
    /// A signal is about to be delivered to a thread; the next step carries it.
    Signal(Pid, Signal),
    /// A thread made another one; it has not finished its system call yet.
    Cloned(Pid),
    /// A thread ended.
    ThreadEnded(Pid),
    /// The process exited with a status.
    Exited(i32),
    /// The process was killed.
    Killed(Signal),
}

/// A program under ptrace. All calls must come from the thread that started it.
#[derive(Debug)]
pub struct Tracee {
    child: Child,
    pid: Pid,
}

impl Tracee {
    /// Starts `program`, stopped before its first instruction, with `environment` and nothing else.
    ///
    /// Address space randomisation is off, so that a finding can be reproduced. Its standard output is
    /// piped; see [`Tracee::output`].
    pub fn start(program: &Path, arguments: &[&OsStr], environment: &[(&str, &str)]) -> io::Result<Self> {
        pin()?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        // SAFETY: the closure only makes two system calls: both are async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                personality::set(Persona::ADDR_NO_RANDOMIZE)?;
                ptrace::traceme()?;
                Ok(())
            });
        }
        let child = command.spawn()?;
        let pid = Pid::from_raw(child.id() as i32);
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        match waitpid(pid, Some(flags))? {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
            other => return Err(io::Error::other(format!("expected the exec stop, got {other:?}"))),
        }
        ptrace::setoptions(pid, Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL)?;
        Ok(Self { child, pid })
    }

    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Lets `thread` execute one instruction, delivering `signal` first if there is one.
    pub fn step(&self, thread: Pid, signal: Option<Signal>) -> io::Result<()> {
        Ok(ptrace::step(thread, signal)?)
    }

    /// Lets `thread` run, delivering `signal` first if there is one.
    pub fn resume(&self, thread: Pid, signal: Option<Signal>) -> io::Result<()> {
        Ok(ptrace::cont(thread, signal)?)
    }

    /// Waits until any thread of the tracee reports.
    pub fn wait(&self) -> io::Result<Event> {
        self.wait_of(None)
    }

    /// Waits until this thread reports.
    pub fn wait_for(&self, thread: Pid) -> io::Result<Event> {
        self.wait_of(Some(thread))
    }

    fn wait_of(&self, thread: Option<Pid>) -> io::Result<Event> {
        loop {
            // Only children of this thread: another test may own processes of its own.
            let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
            return Ok(match waitpid(thread, Some(flags))? {
                WaitStatus::Stopped(thread, Signal::SIGTRAP) => Event::Step(thread),
                WaitStatus::Stopped(thread, signal) => Event::Signal(thread, signal),
                WaitStatus::PtraceEvent(thread, _, _) => Event::Cloned(thread),
                WaitStatus::Exited(pid, status) if pid == self.pid => Event::Exited(status),
                WaitStatus::Signaled(pid, signal, _) if pid == self.pid => Event::Killed(signal),
                WaitStatus::Exited(thread, _) | WaitStatus::Signaled(thread, _, _) => {
                    Event::ThreadEnded(thread)
                }
                _ => continue,
            });
        }
    }

    /// The registers of a stopped thread.
    pub fn registers(&self, thread: Pid) -> io::Result<Registers> {
        Ok(ptrace::getregs(thread)?)
    }

    /// Copies memory of the tracee; returns how many bytes were readable from `address` on.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        let remote = [RemoteIoVec { base: address as usize, len: buffer.len() }];
        process_vm_readv(self.pid, &mut [IoSliceMut::new(buffer)], &remote).unwrap_or(0)
    }

    /// Reads one little-endian word.
    pub fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.read(address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    }

    /// True if `thread` catches `signal`, and does not block it.
    pub fn catches(&self, thread: Pid, signal: Signal) -> bool {
        let Ok(status) = fs::read_to_string(format!("/proc/{}/task/{thread}/status", self.pid)) else {
            return false;
        };
        let mask = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or("0");
            u64::from_str_radix(line.trim(), 16).unwrap_or(0)
        };
        let bit = 1u64 << (signal as u32 - 1);
        mask("SigCgt:") & bit != 0 && mask("SigBlk:") & bit == 0
    }

    /// What the program wrote to its standard output; to be called when it has ended.
    pub fn output(&mut self) -> io::Result<String> {
        let mut text = String::new();
        if let Some(mut pipe) = self.child.stdout.take() {
            io::Read::read_to_string(&mut pipe, &mut text)?;
        }
        Ok(text)
    }
}

/// Keeps this thread, and the tracee it starts, on one processor: a step is two switches between them, and a
/// switch across processors costs twice as much.
fn pin() -> io::Result<()> {
    let mut here = CpuSet::new();
    here.set(sched_getcpu()?)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &here)?)
}

impl Drop for Tracee {
    fn drop(&mut self) {
        // An ended process is not there any more; the calls then fail, which is what we want.
        let _ = self.child.kill();
        // The process is not gone before each of its traced threads was waited for.
        while let Ok(event) = self.wait() {
            if matches!(event, Event::Exited(_) | Event::Killed(_)) {
                break;
            }
        }
    }
}
