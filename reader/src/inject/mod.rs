//! Puts the agent into a process that runs already, and talks to it there.
//!
//! Nothing of the process is called, neither its loader nor its allocator, whose locks a stopped thread may hold: the
//! agent is laid out and relocated from here (`image`), with every thread stopped for some milliseconds (`frozen`),
//! and one thread runs its entry point on a stack of ours (`visit`). So it works at any instant, with any C library and
//! with none. What must never happen: a thread that does not come back as it was.

pub mod command;
mod facts;
mod frame;
mod frozen;
mod gadgets;
mod image;
mod memory;
pub mod renewal;
mod visit;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shm_format::injection::{Call, Command};

use crate::agent_file::{self, private_directory};
use crate::attach::{AttachError, Attached};
use crate::process::RegionName;
use crate::rate::{self, Overhead};
use crate::source::Source;
use crate::translate::source_name;
use crate::{liveness, session};

use frozen::Frozen;
use memory::Memory;
use visit::{Place, Visit};

/// All threads stand still after this time, or we give up.
const FREEZE: Duration = Duration::from_millis(1500);
/// How long the loader may be in the middle of something.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long an agent may take from the making of its region until it has told who it is.
const BEGIN: Duration = Duration::from_secs(2);
/// Between two looks at that.
const GLANCE: Duration = Duration::from_millis(5);
/// Between two looks at the loader.
const PAUSE: Duration = Duration::from_millis(2);

/// Why the agent cannot be put into a process, and the way out.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// No such process, or it ended meanwhile.
    #[error("process {0} does not exist")]
    NoProcess(i32),
    /// Our own pid.
    #[error("that is this selfwind itself")]
    Oneself,
    /// It has no program.
    #[error("process {0} belongs to the kernel: there is no program to sample")]
    Kernel(i32),
    /// Not x86-64.
    #[error("process {0} does not run an x86-64 program, and the agent is one")]
    NotNative(i32),
    /// Another's.
    #[error(
        "process {pid} belongs to user {user}, selfwind runs as {own}; run it as that user: sudo -u '#{user}' selfwind ..."
    )]
    OtherUser {
        /// The process.
        pid: i32,
        /// Its user.
        user: u32,
        /// Ours.
        own: u32,
    },
    /// ptrace is not permitted.
    #[error("process {pid} may not be traced: {why}; or start it with `selfwind record -- CMD`")]
    Denied {
        /// The process.
        pid: i32,
        /// What forbids it, and the remedy.
        why: String,
    },
    /// A debugger has it.
    #[error("process {pid} is traced by process {tracer} already (a debugger, strace?); end that first")]
    Traced {
        /// The process.
        pid: i32,
        /// Its tracer.
        tracer: i32,
    },
    /// Stopped by a signal.
    #[error("process {0} is stopped; continue it first: kill -CONT {0}")]
    Stopped(i32),
    /// It filters its system calls.
    #[error(
        "process {0} filters its system calls (seccomp) and might be killed for the agent's; start it with `selfwind record -- CMD`, which sees the filter come"
    )]
    Filtered(i32),
    /// Another mount or pid namespace.
    #[error(
        "process {pid} lives in another {name} namespace (a container?); run selfwind in there: nsenter -t {pid} -m -p ..."
    )]
    Namespace {
        /// The process.
        pid: i32,
        /// Of what kind.
        name: &'static str,
    },
    /// A thread does not react.
    #[error("thread {thread} of process {pid} is in an uninterruptible wait (state D); try again later")]
    Unstoppable {
        /// The process.
        pid: i32,
        /// The thread.
        thread: i32,
    },
    /// The loader's list is never whole.
    #[error("process {0} was loading or unloading libraries all the time; try again")]
    Loading(i32),
    /// Signals all the time.
    #[error("thread {0} gets signals without pause; try again")]
    Busy(i32),
    /// No code that makes system calls, not even a vDSO.
    #[error("the process holds no system call instruction to use")]
    NoWay,
    /// The target cannot map memory.
    #[error("the process cannot map memory for the agent: {0}")]
    Map(io::Error),
    /// /proc/PID/mem.
    #[error("the memory of the process cannot be accessed: {0}")]
    Memory(io::Error),
    /// No directory for the region.
    #[error("no place for shared memory ({0}); set XDG_RUNTIME_DIR to a directory of yours")]
    NoDirectory(String),
    /// The agent refuses.
    #[error("the agent in the process reports: {0}")]
    Agent(String),
    /// It is held by an agent that we did not put there.
    #[error(
        "process {0} was started with the agent, which samples as long as it runs; `selfwind record -p {0}` reads it"
    )]
    Preloaded(i32),
    /// It is sampled by something else.
    #[error(
        "process {pid} is sampled by `{own}` since its start, which a recorder cannot change: leave out -e {asked}, or start it with SELFWIND_EVENT={asked}"
    )]
    OtherSource {
        /// The process.
        pid: i32,
        /// The source asked for.
        asked: String,
        /// Its own.
        own: String,
    },
    /// The kernel's events need an agent from the start.
    #[error(
        "process {pid} runs without the agent, and one that is put into it samples by CPU timers only: it would not see an exec come, and an event of the kernel on its way would kill the new program; leave out -e {asked}, or start the program with `selfwind record -e {asked} -- CMD`"
    )]
    TimersOnly {
        /// The process.
        pid: i32,
        /// The source asked for.
        asked: String,
    },
    /// It is not attached.
    #[error("process {0} is not attached: there is nothing to detach")]
    NotAttached(i32),
    /// Of another build.
    #[error("process {0} holds the agent of another selfwind; use that one")]
    OtherAgent(i32),
    /// The embedded agent.
    #[error("the embedded agent cannot be laid out: {0}")]
    Image(&'static str),
    /// No agent embedded.
    #[error(transparent)]
    AgentFile(#[from] agent_file::AgentFileError),
    /// The thread vanished.
    #[error("thread {0} ended meanwhile")]
    Lost(i32),
    /// The agent takes too long.
    #[error("the agent did not start in time on thread {0}, which goes on by itself")]
    Slow(i32),
    /// A defect.
    #[error("the agent failed to start (signal {0}); the process is as it was")]
    Fault(i32),
}

impl InjectError {
    fn denied(pid: i32, error: io::Error) -> Self {
        let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
        let why = match scope.trim() {
            "1" => "kernel.yama.ptrace_scope is 1, so only its parent may; `sudo sysctl kernel.yama.ptrace_scope=0` permits it, or run selfwind as root".into(),
            "2" => "kernel.yama.ptrace_scope is 2, so only root may; run selfwind as root".into(),
            "3" => "kernel.yama.ptrace_scope is 3, so nobody may until the next boot".into(),
            _ => format!("{error}; it may have changed its user or forbidden it (PR_SET_DUMPABLE); root may"),
        };
        Self::Denied { pid, why }
    }
}

/// How the agent is to sample.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Samples per second of CPU time.
    pub frequency: u32,
    /// Frames kept of a stack.
    pub max_stack: u32,
    /// What sampling may cost.
    pub max_overhead: Overhead,
}

/// What an attach found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// The process did not sample before.
    New,
    /// It was attached already; modules and threads have been looked at once more.
    Renewed,
}

/// How a process comes to be sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// By an agent that has just been put into it.
    Begun,
    /// It was already.
    Found {
        /// Samples per second of CPU time; 0 if they do not come by time.
        frequency: u32,
        /// A recorder put the agent there, and can do so again.
        attached: bool,
    },
}

/// An agent in a process.
struct Present {
    /// The stub's address, if a recorder has put it there.
    control: Option<u64>,
    sampling: bool,
    /// What samples it, and the nanoseconds of a unit of weight.
    source: (String, u64),
}

/// Has `pid` sampled, from now until [`detach`] or its end.
pub fn attach(pid: u32, settings: Settings) -> Result<Attachment, InjectError> {
    let pid = pid as i32;
    facts::check(pid)?;
    let present = present(pid);
    if present.as_ref().is_some_and(|present| present.control.is_none()) {
        return Err(InjectError::Preloaded(pid));
    }
    let strings = strings(settings)?;
    visit(pid, present.as_ref().and_then(|present| present.control), Command::Start, &strings)?;
    Ok(if present.is_some_and(|present| present.sampling) { Attachment::Renewed } else { Attachment::New })
}

/// Has `pid` sampled, unless it is already.
pub fn ensure(pid: u32, settings: Settings) -> Result<Sampling, InjectError> {
    match found(pid) {
        Some(found) => Ok(found),
        None => attach(pid, settings).map(|_| Sampling::Begun),
    }
}

/// How `pid` is sampled, if it is.
pub fn found(pid: u32) -> Option<Sampling> {
    let Present { control, source: (_, period_ns), .. } =
        present(pid as i32).filter(|present| present.sampling)?;
    let frequency = (1_000_000_000 + period_ns / 2).checked_div(period_ns).unwrap_or(0);
    // Time off the processor and events have units, not rates.
    let frequency = if frequency > u64::from(rate::HIGHEST_FREQUENCY) { 0 } else { frequency as u32 };
    Some(Sampling::Found { frequency, attached: control.is_some() })
}

/// Refuses a source that `pid` cannot be sampled by: what has the agent from its start keeps its own, and what gets it
/// now has CPU timers.
pub fn check_source(pid: u32, source: &Source) -> Result<(), InjectError> {
    if matches!(source, Source::Auto) {
        return Ok(());
    }
    let asked = source.name();
    let by_timers = matches!(source, Source::Cpu);
    let pid = pid as i32;
    match present(pid) {
        Some(Present { control: None, source: own, .. }) if source.is_sampled_as(&own.0, own.1) => Ok(()),
        Some(Present { control: None, source: (own, _), .. }) => {
            Err(InjectError::OtherSource { pid, asked, own })
        }
        _ if by_timers => Ok(()),
        _ => Err(InjectError::TimersOnly { pid, asked }),
    }
}

/// Ends what [`attach`] began. The process runs on.
pub fn detach(pid: u32) -> Result<(), InjectError> {
    let pid = pid as i32;
    facts::check(pid)?;
    match present(pid) {
        None => Err(InjectError::NotAttached(pid)),
        Some(Present { control: None, .. }) => Err(InjectError::Preloaded(pid)),
        Some(Present { sampling: false, .. }) => Err(InjectError::NotAttached(pid)),
        Some(Present { control, .. }) => visit(pid, control, Command::Stop, &[]),
    }
}

/// The agent that the process has now: the one whose region it has mapped.
fn present(pid: i32) -> Option<Present> {
    let deadline = Instant::now() + BEGIN;
    loop {
        match look(pid) {
            Look::Found(present) => return Some(present),
            Look::Beginning if Instant::now() < deadline => std::thread::sleep(GLANCE),
            Look::Beginning | Look::Nothing => return None,
        }
    }
}

/// What there is of an agent in a process.
enum Look {
    Nothing,
    /// It has made its region and has not told who it is.
    Beginning,
    Found(Present),
}

fn look(pid: i32) -> Look {
    let entries =
        session::directories().into_iter().flat_map(|path| std::fs::read_dir(path).into_iter().flatten());
    let start_time = liveness::start_time(pid as u32);
    let mut look = Look::Nothing;
    for entry in entries.flatten() {
        let Some(name) = RegionName::parse(&entry.file_name()).filter(|name| name.pid == pid as u32) else {
            continue;
        };
        let peek = Attached::peek(&entry.path());
        let told = matches!(&peek, Ok(peek) if !peek.exe.is_empty());
        match peek {
            // One that is not mapped is that of the program before an exec.
            Ok(peek) if told && facts::maps(pid as u32, &entry.path()) => {
                let source = (source_name(peek.source.0), peek.source.1);
                return Look::Found(Present { control: peek.control, sampling: peek.sampling, source });
            }
            Ok(_) | Err(AttachError::Unfinished) if !told && Some(name.start_time) == start_time => {
                look = Look::Beginning;
            }
            _ => {}
        }
    }
    look
}

fn strings(settings: Settings) -> Result<Vec<u8>, InjectError> {
    let directory = flight_directory()?;
    let mut strings = Vec::new();
    for (name, value) in [
        ("DIR", directory.display().to_string()),
        ("MODE", "overwrite".into()),
        ("EVENT", "cpu".into()),
        ("FREQ", settings.frequency.to_string()),
        ("MAX_STACK", settings.max_stack.to_string()),
        ("MAX_OVERHEAD", settings.max_overhead.to_string()),
    ] {
        strings.extend(format!("SELFWIND_{name}={value}\0").bytes());
    }
    Ok(strings)
}

/// Where flight recorders of this user go.
fn flight_directory() -> Result<PathBuf, InjectError> {
    let mut tried = Vec::new();
    for base in session::bases() {
        let directory = base.join(session::FLIGHT);
        match private_directory(&base).and_then(|()| private_directory(&directory)) {
            Ok(()) => return Ok(directory),
            Err(error) => tried.push(format!("{}: {error}", base.display())),
        }
    }
    Err(InjectError::NoDirectory(tried.join("; ")))
}

/// Stops the process, has one of its threads do `command`, and lets it go on.
fn visit(pid: i32, control: Option<u64>, command: Command, settings: &[u8]) -> Result<(), InjectError> {
    let agent = agent_file::content().ok_or(agent_file::AgentFileError::NotEmbedded)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let frozen = Frozen::new(pid, Instant::now() + FREEZE)?;
        let memory = Memory::of(pid).map_err(|error| InjectError::denied(pid, error))?;
        let debugger = facts::debugger_interface(pid, &memory);
        if !facts::is_loader_idle(&memory, debugger) {
            frozen.thaw();
            if Instant::now() > deadline {
                return Err(InjectError::Loading(pid));
            }
            std::thread::sleep(PAUSE);
            continue;
        }
        let tid = *frozen.threads().first().ok_or(InjectError::NoProcess(pid))?;
        let visit = Visit::new(tid, &memory, agent, deadline);
        let place = match control {
            Some(base) => Place::known(base, agent, &memory).ok_or(InjectError::OtherAgent(pid)),
            None => visit.lay_out(&facts::mappings(pid)),
        };
        let call = Call { command: command as u64, debugger, ..Call::default() };
        let result = place.and_then(|place| visit.call(place, call, settings));
        let held = visit.held();
        frozen.thaw();
        if let Some(signal) = held.and_then(|signal| Signal::try_from(signal).ok()) {
            // It came while the thread could not have it. The process may be gone.
            let _ = kill(Pid::from_raw(pid), signal);
        }
        return result;
    }
}
