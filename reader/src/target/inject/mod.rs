//! Puts the agent into a process that runs already, and talks to it there.
//!
//! Nothing of the process is called, neither its loader nor its allocator, whose locks any thread may hold: the agent is
//! laid out and relocated from here (`image`), one thread is stopped for a moment (`paused`) and starts another that runs
//! the agent's entry point on a stack of ours (`visit`). So it works at any instant, with any C library and with none, and
//! however many threads there are. What must never happen: a thread that does not come back as it was.

mod errand;
mod facts;
mod filter;
mod filter_program;
mod frame;
mod gadgets;
mod handed_region;
mod image;
mod layout;
mod loader_hook;
mod memory;
mod paused;
mod refusal;
mod visit;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use shm_format::injection::Command;

use crate::proc;
use crate::sampling::clock::Clock;
use crate::sampling::rate::{self, Overhead};
use crate::sampling::sources::Sources;
use crate::sampling::unwinding::{CopyLimit, Unwinding};
use crate::target::attach::{AttachError, Attached, Peek};
use crate::target::region_name::RegionName;
use crate::target::session;
use crate::target::translate::source_name;

use errand::visit;
use handed_region::{HandedRegion, flight_directory};
pub(crate) use refusal::InjectError;

/// True if the loader of the process tells its agent of changes.
pub(crate) fn is_told_of_changes(pid: u32) -> bool {
    errand::is_told_of_changes(pid)
}

/// Frames kept of a stack, unless somebody says otherwise.
const DEFAULT_STACK: u32 = 512;
/// How long an agent may take from the making of its region until it has told who it is.
const BEGIN: Duration = Duration::from_secs(2);
/// Between two looks at that.
const GLANCE: Duration = Duration::from_millis(5);

/// How the agent is to sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Samples per second of CPU time.
    pub(crate) frequency: u32,
    /// Frames kept of a stack.
    pub(crate) max_stack: u32,
    /// What sampling may cost.
    pub(crate) max_overhead: Overhead,
    /// Frames of interpreters are left out.
    pub(crate) native_only: bool,
    /// Who unwinds stacks.
    pub(crate) unwinding: Unwinding,
    /// How much of a stack is copied.
    pub(crate) copy_limit: CopyLimit,
    /// It ends with this recorder.
    pub(crate) ends_with_us: bool,
}

/// What an attach found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attachment {
    /// The process did not sample before.
    New,
    /// It was attached already; modules and threads have been looked at once more.
    Renewed,
}

/// How a process comes to be sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sampling {
    /// By an agent that has just been put into it.
    Begun,
    /// It was already.
    Found {
        /// Samples per second of CPU time; 0 if they do not come by time.
        frequency: u32,
        /// A recorder put the agent there, and can do so again.
        attached: bool,
        /// That recorder was to end it and has not: it was killed.
        left: bool,
    },
}

impl Sampling {
    /// True if it is to end with this recorder.
    pub(crate) fn ends_with_us(self) -> bool {
        matches!(self, Self::Begun | Self::Found { left: true, .. })
    }

    /// True if the agent was put into the process when it ran already.
    pub(crate) fn is_attached(self) -> bool {
        matches!(self, Self::Begun | Self::Found { attached: true, .. })
    }
}

/// An agent in a process.
struct Present {
    /// The stub's address, if a recorder has put it there.
    control: Option<u64>,
    sampling: bool,
    /// What samples it, and the nanoseconds of a unit of weight.
    source: (String, u64),
    /// The recorder that is to end it with itself.
    recorder: Option<(u32, u64)>,
    /// What is recorded beside a clock, as the process says.
    probes: String,
}

impl From<Peek> for Present {
    fn from(peek: Peek) -> Self {
        let Peek { control, sampling, recorder, source: (source, unit_ns), probes, .. } = peek;
        Self { control, sampling, source: (source_name(source), unit_ns), recorder, probes }
    }
}

impl Present {
    /// True if its recorder has ended without ending it.
    fn is_left(&self) -> bool {
        self.recorder.is_some_and(|(pid, start)| proc::start_time(pid) != Some(start))
    }
}

/// Has `pid` sampled, from now until [`detach`] or its end.
pub(crate) fn attach(pid: u32, settings: Settings) -> Result<Attachment, InjectError> {
    let pid = pid as i32;
    facts::check(pid)?;
    let present = present(pid);
    if present.as_ref().is_some_and(|present| present.control.is_none()) {
        return Err(InjectError::Preloaded(pid));
    }
    let region = if facts::is_apart(pid) { Some(HandedRegion::new(pid)?) } else { None };
    let strings = strings(settings, region.as_ref())?;
    let control = present.as_ref().and_then(|present| present.control);
    let started = visit(pid, control, Command::Start, &strings, region.as_ref());
    if let Some(region) = region {
        match started {
            Ok(()) => region.replace_others(),
            // One that is still at work has it.
            Err(InjectError::Slow(_)) => {}
            Err(_) => region.remove(),
        }
    }
    started?;
    Ok(if present.is_some_and(|present| present.sampling) { Attachment::Renewed } else { Attachment::New })
}

/// Has `pid` sampled, unless it is already.
pub(crate) fn ensure(pid: u32, settings: Settings) -> Result<Sampling, InjectError> {
    match found(pid) {
        Some(found) => Ok(found),
        None => attach(pid, settings).map(|_| Sampling::Begun),
    }
}

/// How `pid` is sampled, if it is.
pub(crate) fn found(pid: u32) -> Option<Sampling> {
    let present = present(pid as i32).filter(|present| present.sampling)?;
    let left = present.is_left();
    let Present { control, source: (_, period_ns), .. } = present;
    let frequency = (1_000_000_000 + period_ns / 2).checked_div(period_ns).unwrap_or(0);
    // Time off the processor and events have units, not rates.
    let frequency = if frequency > u64::from(rate::MAX_FREQUENCY) { 0 } else { frequency as u32 };
    Some(Sampling::Found { frequency, attached: control.is_some(), left })
}

/// Refuses a source that `pid` cannot be sampled by: what has the agent from its start keeps its own, and what gets it
/// now has CPU timers.
pub(crate) fn check_sources(pid: u32, sources: &Sources) -> Result<(), InjectError> {
    let (asked, pid) = (sources.name(), pid as i32);
    // What stands in the way of the program's calls has to be there from its start.
    if sources.need_start() {
        let (own, setting) = (own_sources(pid as u32), sources.of_agent());
        match own.name() {
            _ if sources.probes_are_among(&own) => {}
            own if own.is_empty() => return Err(InjectError::FromTheStart { pid, asked, setting }),
            own => return Err(InjectError::OtherProbes { pid, asked, own, setting }),
        }
    }
    let clock = sources.clock.clone().unwrap_or_default();
    if clock == Clock::Auto {
        return Ok(());
    }
    let by_timers = clock == Clock::Cpu;
    match present(pid) {
        Some(Present { control: None, source: own, .. }) if clock.is_sampled_as(&own.0, own.1) => Ok(()),
        Some(Present { control: None, source: (own, _), .. }) => {
            Err(InjectError::OtherSource { pid, asked, own })
        }
        _ if by_timers => Ok(()),
        _ => Err(InjectError::TimersOnly { pid, asked }),
    }
}

/// What `pid` samples by, or did until its end, if it has had the agent from its start; nothing, if it has not.
pub(crate) fn own_sources(pid: u32) -> Sources {
    let own = match proc::start_time(pid) {
        Some(_) => present(pid as i32),
        None => regions_of(pid).find_map(|(_, path)| Attached::peek(&path).ok().map(Present::from)),
    };
    let own = own.filter(|own| own.sampling && own.control.is_none());
    own.map_or(Sources::NONE, |own| Sources::of_process(&own.source.0, &own.probes))
}

/// Ends what [`attach`] began. The process runs on.
pub(crate) fn detach(pid: u32) -> Result<(), InjectError> {
    let pid = pid as i32;
    facts::check(pid)?;
    match present(pid) {
        None => Err(InjectError::NotAttached(pid)),
        Some(Present { control: None, .. }) => Err(InjectError::Preloaded(pid)),
        Some(Present { sampling: false, .. }) => Err(InjectError::NotAttached(pid)),
        Some(Present { control, .. }) => visit(pid, control, Command::Stop, &[], None),
    }
}

/// Has a process sampled again, as it was, if it was attached to and somebody has ended that. Says whether so.
pub(crate) fn resume(pid: u32) -> Result<bool, InjectError> {
    let ended = present(pid as i32).filter(|present| present.control.is_some() && !present.sampling);
    let Some(Present { source: (_, period_ns), .. }) = ended else { return Ok(false) };
    let frequency = (1_000_000_000 + period_ns / 2).checked_div(period_ns).unwrap_or(0) as u32;
    attach(
        pid,
        Settings {
            frequency: frequency.clamp(1, rate::MAX_FREQUENCY),
            max_stack: DEFAULT_STACK,
            max_overhead: Overhead::default(),
            native_only: false,
            unwinding: Unwinding::default(),
            copy_limit: CopyLimit::default(),
            ends_with_us: true,
        },
    )?;
    Ok(true)
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

/// The regions that processes of this number have, or have left.
fn regions_of(pid: u32) -> impl Iterator<Item = (RegionName, PathBuf)> {
    let entries =
        session::directories().into_iter().flat_map(|path| std::fs::read_dir(path).into_iter().flatten());
    entries.flatten().filter_map(move |entry| {
        let name = RegionName::parse(&entry.file_name()).filter(|name| name.pid == pid)?;
        Some((name, entry.path()))
    })
}

fn look(pid: i32) -> Look {
    let start_time = proc::start_time(pid as u32);
    let mut look = Look::Nothing;
    for (name, path) in regions_of(pid as u32) {
        let peek = Attached::peek(&path);
        let told = matches!(&peek, Ok(peek) if !peek.exe.is_empty());
        match peek {
            // One that is not mapped is that of the program before an exec.
            Ok(peek) if told && facts::maps(pid as u32, &path) => {
                let sampling = peek.sampling;
                look = Look::Found(peek.into());
                // One that it began anew with another rate may still be there.
                if sampling {
                    return look;
                }
            }
            Ok(_) | Err(AttachError::Unfinished)
                if !told && Some(name.start_time) == start_time && matches!(look, Look::Nothing) =>
            {
                look = Look::Beginning;
            }
            _ => {}
        }
    }
    look
}

fn strings(settings: Settings, region: Option<&HandedRegion>) -> Result<Vec<u8>, InjectError> {
    let place = match region {
        Some(region) => ("REGION", region.setting()),
        None => ("DIR", flight_directory()?.display().to_string()),
    };
    let own = std::process::id();
    let recorder = match proc::start_time(own).filter(|_| settings.ends_with_us) {
        Some(start) => format!("{own}-{start}"),
        None => String::new(),
    };
    let mut strings = Vec::new();
    for (name, value) in [
        place,
        ("MODE", "overwrite".into()),
        ("EVENT", "cpu".into()),
        ("FREQ", settings.frequency.to_string()),
        ("MAX_STACK", settings.max_stack.to_string()),
        ("MAX_OVERHEAD", settings.max_overhead.to_string()),
        ("UNWIND", settings.unwinding.name()),
        ("COPY_LIMIT", settings.copy_limit.to_string()),
        ("NATIVE_ONLY", u8::from(settings.native_only).to_string()),
        ("RECORDER", recorder),
    ] {
        strings.extend(format!("SELFWIND_{name}={value}\0").bytes());
    }
    Ok(strings)
}
