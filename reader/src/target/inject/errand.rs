//! An errand to a running process: one of its threads is stopped and starts another, which does what is asked. Whichever
//! thread stops at once will do.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shm_format::injection::{Call, Command};

use crate::proc::{self, Mapping};
use crate::target::agent_file;
use crate::target::inject::facts;
use crate::target::inject::gadgets::Gadgets;
use crate::target::inject::handed_region::HandedRegion;
use crate::target::inject::layout::AgentLayout;
use crate::target::inject::loader_hook::LoaderHook;
use crate::target::inject::memory::Memory;
use crate::target::inject::paused::{self, Paused, Stopped};
use crate::target::inject::refusal::InjectError;
use crate::target::inject::visit::Visit;

/// A thread stands still after this time, or another is asked. Where more are ready than there are processors, each has to
/// wait for its turn.
const STOP: Duration = Duration::from_millis(1500);
/// How long it may take to find a thread that stops, and to come back from it.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the agent may be at work, beside its time for each thread.
const WORK: Duration = Duration::from_secs(10);
const WORK_FOR_A_THREAD: Duration = Duration::from_millis(50);
/// After this time at work it comes first, where others want the processors too.
const HURRY: Duration = Duration::from_millis(500);
/// Between two looks at whether the agent is done.
const LOOK: Duration = Duration::from_micros(500);
/// Between two looks at the threads.
const GLANCE: Duration = Duration::from_millis(5);

/// What a visit needs of a process and leaves in it.
struct Errand<'a> {
    pid: i32,
    memory: Memory,
    agent: &'a [u8],
    gadgets: Gadgets,
    hook: Option<LoaderHook>,
    /// Where the agent is.
    place: Option<AgentLayout>,
    /// It was laid there by this visit.
    is_fresh: bool,
}

/// What one thread could do about it.
enum Tried {
    Done,
    /// Another must be asked.
    NotHere(InjectError),
}

/// Has one thread of the process start another that does `command`, and waits for that.
pub(super) fn visit(
    pid: i32,
    control: Option<u64>,
    command: Command,
    settings: &[u8],
    region: Option<&HandedRegion>,
) -> Result<(), InjectError> {
    // Whatever failed: of a process that has ended it is its end.
    run(pid, control, command, settings, region).map_err(|error| match facts::has_ended(pid) {
        true => InjectError::NoProcess(pid),
        false => error,
    })
}

fn run(
    pid: i32,
    control: Option<u64>,
    command: Command,
    settings: &[u8],
    region: Option<&HandedRegion>,
) -> Result<(), InjectError> {
    let agent = agent_file::content().ok_or(agent_file::AgentFileError::NotEmbedded)?;
    let memory = Memory::of(pid).map_err(|error| InjectError::denied(pid, error))?;
    let place = match control {
        Some(base) => Some(AgentLayout::known(base, agent, &memory).ok_or(InjectError::OtherAgent(pid))?),
        None => None,
    };
    let debugger = facts::debugger_interface(pid, &memory);
    let hook = LoaderHook::find(&memory, debugger);
    let gadgets = match place {
        None => Gadgets::find(&mappings_of(pid), &memory),
        Some(_) => Gadgets::default(),
    };
    let mut errand = Errand { pid, memory, agent, gadgets, hook, place, is_fresh: false };
    if let Some(place) = errand.place {
        errand.wait(place, None)?;
        if let (Command::Stop, Some(hook)) = (command, errand.hook) {
            hook.clear(&errand.memory).map_err(InjectError::Memory)?;
        }
    }
    let call = Call { command: command as u64, debugger, ..Call::default() };
    let result = errand.send(|visit, place| visit.call(place, call, settings)).and_then(|()| {
        let place = errand.place.ok_or(InjectError::NoWay)?;
        errand.wait(place, region)?;
        place.result(&errand.memory)
    });
    match (&result, errand.place) {
        (Ok(()), Some(place)) if command == Command::Start => errand.tell_of_changes(place),
        (Err(InjectError::Agent(_) | InjectError::Busy(_)), Some(place)) if errand.is_fresh => {
            let _ = errand.send(|visit, _| visit.take_away(&mappings_of(pid), place));
        }
        _ => {}
    }
    result
}

impl Errand<'_> {
    /// Has some thread do `what`, each in its turn until one can.
    fn send(
        &mut self,
        what: impl Fn(&Visit<'_>, AgentLayout) -> Result<(), InjectError> + Sync,
    ) -> Result<(), InjectError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut last = InjectError::NoProcess(self.pid);
            for tid in paused::candidates(self.pid)? {
                // What a thread traces is let go of when it ends, in whatever state.
                let tried = std::thread::scope(|scope| {
                    scope
                        .spawn(|| self.attempt(tid, deadline, &what))
                        .join()
                        .unwrap_or(Ok(Tried::NotHere(InjectError::Lost(tid))))
                })?;
                match tried {
                    Tried::Done => return Ok(()),
                    Tried::NotHere(why) => last = why,
                }
                if Instant::now() > deadline {
                    break;
                }
            }
            if Instant::now() > deadline {
                return Err(last);
            }
            std::thread::sleep(GLANCE);
        }
    }

    fn attempt(
        &mut self,
        tid: i32,
        deadline: Instant,
        what: impl Fn(&Visit<'_>, AgentLayout) -> Result<(), InjectError>,
    ) -> Result<Tried, InjectError> {
        let mappings = mappings_of(self.pid);
        let paused = match Paused::stop(self.pid, tid, Instant::now() + STOP)? {
            Stopped::Paused(paused) => paused,
            Stopped::Gone => return Ok(Tried::NotHere(InjectError::Lost(tid))),
            Stopped::Late => {
                return Ok(Tried::NotHere(InjectError::Unstoppable { pid: self.pid, thread: tid }));
            }
        };
        let visit = Visit::new(paused.tid(), &self.memory, self.agent, self.gadgets, deadline);
        let place = match self.place {
            Some(place) if visit.is_in(place) => return Ok(Tried::NotHere(InjectError::Busy(tid))),
            Some(place) => place,
            None => {
                let bytes = AgentLayout::bytes(self.agent)?;
                let hint = self.hook.and_then(|hook| hook.near(&mappings, bytes)).unwrap_or(0);
                match visit.lay_out(&mappings, hint) {
                    Ok(place) => place,
                    Err(InjectError::Lost(tid)) => return Ok(Tried::NotHere(InjectError::Lost(tid))),
                    Err(error) => return Err(error),
                }
            }
        };
        self.is_fresh |= self.place.is_none();
        self.place = Some(place);
        let result = what(&visit, place);
        let held = visit.held();
        drop(paused);
        if let Some(signal) = held.and_then(|signal| Signal::try_from(signal).ok()) {
            // It came while the thread could not have it. The process may be gone.
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
        match result {
            Ok(()) => Ok(Tried::Done),
            Err(InjectError::Busy(tid)) => Ok(Tried::NotHere(InjectError::Busy(tid))),
            Err(error) => Err(error),
        }
    }

    /// Waits until nobody is at work in the agent, which may ask for its region's file.
    fn wait(&self, place: AgentLayout, region: Option<&HandedRegion>) -> Result<(), InjectError> {
        let threads = proc::threads(self.pid as u32).map_or(1, |threads| threads.len()) as u32;
        let deadline = Instant::now() + WORK + WORK_FOR_A_THREAD * threads;
        let hurry_at = Instant::now() + HURRY;
        let mut hurried = false;
        loop {
            let worker = place.worker(&self.memory)?;
            if worker == 0 {
                return Ok(());
            }
            if !hurried && Instant::now() > hurry_at {
                hurried = true;
                hurry(worker as u32);
            }
            if let (Some(region), Some(socket)) = (region, place.socket(&self.memory)) {
                region.hand_over(self.pid, socket)?;
            }
            if !Path::new(&format!("/proc/{}/task", self.pid)).exists() {
                return Err(InjectError::NoProcess(self.pid));
            }
            if Instant::now() > deadline {
                return Err(InjectError::Slow(self.pid));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Has the loader tell the agent of its changes from now on. Where it cannot, the recorder looks at times.
    fn tell_of_changes(&self, place: AgentLayout) {
        if let (Some(hook), Some(target)) = (self.hook, place.hook(&self.memory)) {
            let _ = hook.set(&self.memory, target);
        }
    }
}

/// Lets a thread of ours in another process have the processor before thousands that are ready too, if we may. It soon
/// ends.
fn hurry(tid: u32) {
    const FIRST: i32 = -20;
    let _ = rustix::process::setpriority_process(rustix::process::Pid::from_raw(tid as i32), FIRST);
}

/// What the process has mapped; nothing once it has ended.
fn mappings_of(pid: i32) -> Vec<Mapping> {
    proc::mappings(pid as u32).unwrap_or_default()
}

/// True if the loader of the process tells its agent of changes.
pub(super) fn is_told_of_changes(pid: u32) -> bool {
    let pid = pid as i32;
    Memory::of(pid).is_ok_and(|memory| {
        let debugger = facts::debugger_interface(pid, &memory);
        LoaderHook::find(&memory, debugger).is_some_and(|hook| hook.is_set(&memory))
    })
}
