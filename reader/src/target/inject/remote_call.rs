//! Calls the agent inside a running process: one of its threads is stopped and starts another one, which makes the call. Any thread
//! that stops promptly will do.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shm_format::injection::{Call, Command};

use crate::proc::{self, Mapping};
use crate::target::agent_file;
use crate::target::attach::ptrace;
use crate::target::inject::diversion::Diversion;
use crate::target::inject::error::InjectError;
use crate::target::inject::facts::{self, RunningProgram};
use crate::target::inject::gadgets::Gadgets;
use crate::target::inject::handed_region::HandedRegion;
use crate::target::inject::layout::AgentLayout;
use crate::target::inject::loader_hook::LoaderHook;
use crate::target::inject::memory::Memory;
use crate::target::inject::own_thread;
use crate::target::inject::paused::{self, Paused, Stopped};
use crate::target::inject::shared_stacks;

/// How long to wait for a thread to stop before another is tried. With more runnable threads than CPUs, a thread stops only when it
/// is scheduled.
const STOP: Duration = Duration::from_millis(1500);
/// How long to try until some thread has stopped and is back.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the agent may take, in addition to the time for each thread.
const WORK: Duration = Duration::from_secs(10);
const WORK_FOR_A_THREAD: Duration = Duration::from_millis(50);
/// After this time its priority is raised.
const RAISE_PRIORITY_AFTER: Duration = Duration::from_millis(500);
/// How often to check whether the agent has finished.
const POLL_EVERY: Duration = Duration::from_micros(500);
/// How often to list the threads.
const CHECK_EVERY: Duration = Duration::from_millis(5);

/// A call of the agent in a process.
struct RemoteCall<'a> {
    pid: i32,
    memory: Memory,
    agent: &'a [u8],
    gadgets: Gadgets,
    hook: Option<LoaderHook>,
    /// The agent's layout, if it has been injected.
    layout: Option<AgentLayout>,
    /// It was injected by this call.
    is_fresh: bool,
}

/// The result of an attempt with one thread.
enum Attempt {
    Done,
    /// Another thread must be tried.
    NotHere(InjectError),
}

/// What an agent is called for.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) command: Command,
    /// The recording needs the agent that can redirect allocations.
    pub(super) allocations: bool,
    /// For [`Command::Start`].
    pub(super) settings: &'a [u8],
    /// The region to hand over, if the agent may not create its file.
    pub(super) region: Option<&'a HandedRegion>,
}

impl Request<'_> {
    /// To execute `command` in an agent that is there.
    pub(super) const fn of(command: Command) -> Self {
        Self { command, allocations: false, settings: &[], region: None }
    }
}

/// Has a thread of the process start another one that executes `request` in the agent, and waits for it.
pub(super) fn call_agent(pid: i32, control: Option<u64>, request: Request<'_>) -> Result<(), InjectError> {
    let program = RunningProgram::of(pid as u32);
    // Any error may have this cause.
    run(pid, control, request).map_err(|error| match RunningProgram::of(pid as u32) {
        _ if facts::has_ended(pid) => InjectError::NoProcess(pid),
        now if now != program => InjectError::Replaced(pid),
        _ => error,
    })
}

/// The agent at `base` in the process, and its layout.
fn known(base: u64, pid: i32, memory: &Memory) -> Result<(&'static [u8], AgentLayout), InjectError> {
    let builds = [agent_file::content(), agent_file::probes_content()];
    let known = |agent| Some((agent, AgentLayout::known(base, agent, memory)?));
    builds.into_iter().flatten().find_map(known).ok_or(InjectError::OtherAgent(pid))
}

fn run(pid: i32, control: Option<u64>, request: Request<'_>) -> Result<(), InjectError> {
    let Request { command, allocations, settings, region } = request;
    let plain = agent_file::content().ok_or(agent_file::AgentFileError::NotEmbedded)?;
    let wanted = if allocations { agent_file::probes_content().unwrap_or(plain) } else { plain };
    let memory = Memory::of(pid).map_err(|error| InjectError::denied(pid, error))?;
    let (agent, layout) = match control {
        Some(base) => {
            let (agent, layout) = known(base, pid, &memory)?;
            if allocations && agent == plain {
                return Err(InjectError::PlainAgent(pid));
            }
            (agent, Some(layout))
        }
        None => (wanted, None),
    };
    let debugger = facts::debugger_interface(pid, &memory);
    let hook = LoaderHook::find(&memory, debugger);
    let gadgets = match (layout, command) {
        (None, _) | (_, Command::Start) => Gadgets::find(&mappings_of(pid), &memory),
        _ => Gadgets::default(),
    };
    let mut errand = RemoteCall { pid, memory, agent, gadgets, hook, layout, is_fresh: false };
    if let Some(layout) = errand.layout {
        errand.wait(layout, None)?;
    }
    let call = Call { command: command as u64, debugger, ..Call::default() };
    let auxiliary = facts::auxiliary_vector(pid as u32).unwrap_or_default();
    if command == Command::Start {
        shared_stacks::Process { pid, memory: &errand.memory, gadgets: errand.gadgets }.separate_stacks();
    }
    let result = errand
        .try_threads(|visit, layout| visit.call(layout, call, settings, &auxiliary, region))
        .and_then(|()| {
            let layout = errand.layout.ok_or(InjectError::NoWay)?;
            errand.wait(layout, region)?;
            layout.result(&errand.memory)
        });
    match (&result, errand.layout) {
        (Ok(()), Some(layout)) if command == Command::Start => errand.hook_loader(layout),
        // Not before: the loader waits while the agent restores what it has redirected.
        (Ok(()), Some(_)) if command == Command::Stop => {
            if let Some(hook) = errand.hook {
                hook.clear(&errand.memory).map_err(InjectError::Memory)?;
            }
        }
        (Err(InjectError::Agent(_) | InjectError::Busy(_)), Some(layout)) if errand.is_fresh => {
            let _ = errand.try_threads(|visit, _| visit.take_away(&mappings_of(pid), layout));
        }
        _ => {}
    }
    result
}

impl RemoteCall<'_> {
    /// Tries one thread after another until one can do `what`.
    fn try_threads(
        &mut self,
        what: impl Fn(&Diversion<'_>, AgentLayout) -> Result<(), InjectError> + Sync,
    ) -> Result<(), InjectError> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let mut last = InjectError::NoProcess(self.pid);
            for tid in paused::candidates(self.pid)? {
                match own_thread::run(self.pid, || self.attempt(tid, deadline, &what))? {
                    Attempt::Done => return Ok(()),
                    Attempt::NotHere(why) => last = why,
                }
                if Instant::now() > deadline {
                    break;
                }
            }
            if Instant::now() > deadline {
                return Err(last);
            }
            std::thread::sleep(CHECK_EVERY);
        }
    }

    fn attempt(
        &mut self,
        tid: i32,
        deadline: Instant,
        what: impl Fn(&Diversion<'_>, AgentLayout) -> Result<(), InjectError>,
    ) -> Result<Attempt, InjectError> {
        let mappings = mappings_of(self.pid);
        let paused = match Paused::stop(self.pid, tid, Instant::now() + STOP)? {
            Stopped::Paused(paused) => paused,
            Stopped::Gone => return Ok(Attempt::NotHere(InjectError::Lost(tid))),
            Stopped::Late => {
                return Ok(Attempt::NotHere(InjectError::Unstoppable { pid: self.pid, thread: tid }));
            }
        };
        if ptrace::dispatches_calls(paused.tid()) {
            return Err(InjectError::Dispatches(self.pid));
        }
        let visit = Diversion::new(paused.tid(), &self.memory, self.agent, self.gadgets, deadline);
        let layout = match self.layout {
            Some(layout) if !visit.leave_agent(layout)? => {
                return Ok(Attempt::NotHere(InjectError::Busy(tid)));
            }
            Some(layout) => layout,
            None => {
                let bytes = AgentLayout::bytes(self.agent)?;
                let hint = self.hook.and_then(|hook| hook.near(&mappings, bytes)).unwrap_or(0);
                match visit.lay_out(&mappings, hint) {
                    Ok(layout) => layout,
                    Err(InjectError::Lost(tid)) => return Ok(Attempt::NotHere(InjectError::Lost(tid))),
                    Err(error) => return Err(error),
                }
            }
        };
        self.is_fresh |= self.layout.is_none();
        self.layout = Some(layout);
        let result = what(&visit, layout);
        let held = visit.held();
        drop(paused);
        if let Some(signal) = held.and_then(|signal| Signal::try_from(signal).ok()) {
            // A signal that arrived while it could not be delivered. The process may have ended.
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
        match result {
            Ok(()) => Ok(Attempt::Done),
            Err(InjectError::Busy(tid)) => Ok(Attempt::NotHere(InjectError::Busy(tid))),
            Err(error) => Err(error),
        }
    }

    /// Waits until the call has finished. The agent may request its region's file in between.
    fn wait(&self, layout: AgentLayout, region: Option<&HandedRegion>) -> Result<(), InjectError> {
        let threads = proc::threads(self.pid as u32).map_or(1, |threads| threads.len()) as u32;
        let deadline = Instant::now() + WORK + WORK_FOR_A_THREAD * threads;
        let hurry_at = Instant::now() + RAISE_PRIORITY_AFTER;
        let mut hurried = false;
        loop {
            let worker = layout.worker(&self.memory)?;
            if worker == 0 {
                return Ok(());
            }
            if !hurried && Instant::now() > hurry_at {
                hurried = true;
                raise_priority(worker as u32);
            }
            if let (Some(region), Some(socket)) = (region, layout.socket(&self.memory)) {
                region.hand_over(socket)?;
            }
            if !Path::new(&format!("/proc/{}/task", self.pid)).exists() {
                return Err(InjectError::NoProcess(self.pid));
            }
            if Instant::now() > deadline {
                return Err(InjectError::Slow(self.pid));
            }
            std::thread::sleep(POLL_EVERY);
        }
    }

    /// Hooks the loader so that it notifies the agent of loads and unloads. If that fails, the recorder checks for changes itself.
    fn hook_loader(&self, layout: AgentLayout) {
        if let (Some(hook), Some(target)) = (self.hook, layout.hook(&self.memory)) {
            let _ = hook.set(&self.memory, target);
        }
    }
}

/// Raises the priority of the injected thread above thousands of other runnable threads, if permitted. It ends soon.
fn raise_priority(tid: u32) {
    const FIRST: i32 = -20;
    let _ = rustix::process::setpriority_process(rustix::process::Pid::from_raw(tid as i32), FIRST);
}

/// The mappings of the process; none if it has ended.
fn mappings_of(pid: i32) -> Vec<Mapping> {
    proc::mappings(pid as u32).unwrap_or_default()
}

/// True if the loader of the process notifies its agent of loads and unloads.
pub(super) fn is_loader_hooked(pid: u32) -> bool {
    let pid = pid as i32;
    Memory::of(pid).is_ok_and(|memory| {
        let debugger = facts::debugger_interface(pid, &memory);
        LoaderHook::find(&memory, debugger).is_some_and(|hook| hook.is_set(&memory))
    })
}
