//! Injects the agent into a running process, and calls it there.
//!
//! No code of the process is called, neither its loader nor its allocator, whose locks any thread may hold. The agent is laid out
//! and relocated by the reader (`image`); one thread is stopped for a moment (`paused`) and starts another one, which runs the
//! agent's entry point on its own stack (`diversion`). So this works at any instant, with any C library or none, and with any number
//! of threads. What must never happen here: a thread does not return to exactly its previous state.

mod diversion;
mod error;
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
mod own_thread;
mod paused;
mod remote_call;
mod shared_stacks;
mod turn;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shm_format::MAX_DEPTH;
use shm_format::injection::Command;

use crate::proc;
use crate::sampling::buffer::Buffer;
use crate::sampling::clock::Clock;
use crate::sampling::rate::{self, Overhead};
use crate::sampling::sources::Sources;
use crate::sampling::unwinding::{CopyLimit, Unwinding};
use crate::tables::cache::Cache;
use crate::target::attach::{AttachError, Attached, Peek};
use crate::target::liveness;
use crate::target::region_name::RegionName;
use crate::target::session;
use crate::target::translate::source_name;

pub(crate) use error::InjectError;
pub(crate) use facts::{RunningProgram, is_apart, is_secure};
use handed_region::{HandedRegion, flight_directory};
use remote_call::{Request, call_agent};
pub(crate) use turn::Turn;

/// True if the loader of the process notifies its agent of loads and unloads.
pub(crate) fn is_loader_hooked(pid: u32) -> bool {
    remote_call::is_loader_hooked(pid)
}

/// How long an agent may take from creating its region until it has written its Process record.
const BEGIN: Duration = Duration::from_secs(2);
/// How often to check for that.
const CHECK_EVERY: Duration = Duration::from_millis(5);

/// Where the region of an injected agent belongs.
#[derive(Clone, Debug, Default)]
pub(crate) enum Destination {
    /// Among the flight recorders of this user.
    #[default]
    Flight,
    /// In a recorder's session.
    Session {
        /// Its directory.
        directory: PathBuf,
        /// Its nonce.
        nonce: u64,
        /// What happens to samples that find no room: `discard` or `overwrite`.
        mode: &'static str,
    },
}

/// How the agent is to sample.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// What is recorded, as far as an injected agent can.
    pub(crate) sources: Sources,
    /// Samples per second of CPU time.
    pub(crate) frequency: u32,
    /// Maximum stack depth in frames.
    pub(crate) max_stack: u32,
    /// Maximum overhead.
    pub(crate) max_overhead: Overhead,
    /// Leave out frames of interpreted functions.
    pub(crate) native_only: bool,
    /// How stacks are unwound.
    pub(crate) unwinding: Unwinding,
    /// Maximum size of a stack copy.
    pub(crate) copy_limit: CopyLimit,
    /// Memory for samples that are not read yet.
    pub(crate) buffer: Buffer,
    /// Sampling ends with this recorder.
    pub(crate) ends_with_us: bool,
    /// Where its region belongs.
    pub(crate) destination: Destination,
}

/// The result of an attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attachment {
    /// The process was not sampled before.
    New,
    /// It was already attached; its modules and threads have been refreshed.
    Renewed,
}

/// How a process came to be sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sampling {
    /// By an agent that has just been injected.
    Begun,
    /// It was already being sampled.
    Found {
        /// Samples per second of CPU time; 0 if it is not sampled by time.
        frequency: u32,
        /// The agent was injected by a recorder, so it can be called again.
        attached: bool,
        /// That recorder was killed before it could stop the sampling.
        left: bool,
    },
}

impl Sampling {
    /// True if sampling ends with this recorder.
    pub(crate) fn ends_with_us(self) -> bool {
        matches!(self, Self::Begun | Self::Found { left: true, .. })
    }

    /// True if the agent was injected into the running process.
    pub(crate) fn is_attached(self) -> bool {
        matches!(self, Self::Begun | Self::Found { attached: true, .. })
    }
}

/// An agent in a process.
struct Present {
    /// The stub's address, if the agent was injected.
    control: Option<u64>,
    sampling: bool,
    /// Its source, and the nanoseconds of a unit of weight.
    source: (String, u64),
    /// The recorder whose end stops the sampling.
    recorder: Option<(u32, u64)>,
    /// Its sources other than the clock, as reported by the process.
    probes: String,
}

impl From<Peek> for Present {
    fn from(peek: Peek) -> Self {
        let Peek { control, sampling, recorder, source: (source, unit_ns), probes, .. } = peek;
        Self { control, sampling, source: (source_name(source), unit_ns), recorder, probes }
    }
}

impl Present {
    /// True if its recorder has ended without stopping the sampling.
    fn is_left(&self) -> bool {
        self.recorder.is_some_and(|(pid, start)| proc::start_time(pid) != Some(start))
    }
}

/// Starts sampling `pid`, until [`detach`] or its end.
pub(crate) fn attach(pid: u32, settings: &Settings) -> Result<Attachment, InjectError> {
    let pid = pid as i32;
    facts::check(pid)?;
    let present = present(pid);
    if present.as_ref().is_some_and(|present| present.control.is_none()) {
        return Err(InjectError::Preloaded(pid));
    }
    let directory = match &settings.destination {
        Destination::Flight => flight_directory()?,
        Destination::Session { directory, .. } => directory.clone(),
    };
    let control = present.as_ref().and_then(|present| present.control);
    let is_apart = facts::is_apart(pid);
    match start(pid, control, settings, &directory, is_apart) {
        // It may be confined (Landlock, AppArmor, SELinux), which nothing tells in advance.
        Err(InjectError::Agent(_)) if !is_apart => start(pid, control, settings, &directory, true),
        result => result,
    }?;
    let allocations = settings.sources.have_allocations();
    if allocations && let Err(error) = redirect(pid as u32) {
        // In a session it was not asked for in particular, so what can be recorded of it is enough.
        let was_asked_for = matches!(settings.destination, Destination::Flight);
        if was_asked_for || !settings.sources.have_clock() {
            let _ = detach(pid as u32);
            return Err(error);
        }
    }
    Ok(if present.is_some_and(|present| present.sampling) { Attachment::Renewed } else { Attachment::New })
}

/// Has the agent in `pid` start sampling, into a region that it is handed if `hands_over`.
fn start(
    pid: i32,
    control: Option<u64>,
    settings: &Settings,
    directory: &Path,
    hands_over: bool,
) -> Result<(), InjectError> {
    let region = hands_over.then(|| HandedRegion::new(pid, directory)).transpose()?;
    let strings = strings(settings, directory, region.as_ref());
    let allocations = settings.sources.have_allocations();
    let started = call_agent(
        pid,
        control,
        Request { command: Command::Start, allocations, settings: &strings, region: region.as_ref() },
    );
    if let Some(region) = region {
        match started {
            Ok(()) => region.replace_others(),
            // A call that is still in progress has the settings.
            Err(InjectError::Slow(_)) => {}
            Err(_) => region.remove(),
        }
    }
    started
}

/// Has the agent in `pid` redirect the allocations of all objects that are loaded now.
pub(crate) fn redirect(pid: u32) -> Result<(), InjectError> {
    let control = present(pid as i32).and_then(|present| present.control);
    // The agent reads the objects in place: the loader must wait before it unloads one.
    if control.is_none() || !remote_call::is_loader_hooked(pid) || !facts::has_glibc(pid) {
        return Err(InjectError::LoaderUnhooked(pid as i32));
    }
    call_agent(pid as i32, control, Request { allocations: true, ..Request::of(Command::Redirect) })
}

/// Starts sampling `pid`, unless it is already being sampled, by other than a recorder that was killed. Fails if it is, but
/// without sources of `settings` that an agent gets at its start.
pub(crate) fn ensure(pid: u32, settings: &Settings) -> Result<Sampling, InjectError> {
    match found(pid) {
        Some(Sampling::Found { attached: true, left: true, .. }) => detach(pid)?,
        Some(found) => {
            let own = sources_of(pid);
            return match settings.sources.probes_are_among(&own) {
                true => Ok(found),
                false => Err(InjectError::OtherRecorder {
                    pid: pid as i32,
                    asked: settings.sources.name(),
                    own: own.name(),
                }),
            };
        }
        None => {}
    }
    attach(pid, settings).map(|_| Sampling::Begun)
}

/// How `pid` is being sampled, if it is.
pub(crate) fn found(pid: u32) -> Option<Sampling> {
    let present = present(pid as i32).filter(|present| present.sampling)?;
    let left = present.is_left();
    let Present { control, source: (_, period_ns), .. } = present;
    let frequency = (1_000_000_000 + period_ns / 2).checked_div(period_ns).unwrap_or(0);
    // Off-CPU time and events have units, not rates.
    let frequency = if frequency > u64::from(rate::MAX_FREQUENCY) { 0 } else { frequency as u32 };
    Some(Sampling::Found { frequency, attached: control.is_some(), left })
}

/// Fails for sources that are not possible for `pid`: a process started with the agent keeps its own, and an injected agent has CPU
/// timers only.
pub(crate) fn check_sources(pid: u32, sources: &Sources) -> Result<(), InjectError> {
    let (asked, pid) = (sources.name(), pid as i32);
    // Interposed functions must be in place from the start of the program.
    if sources.need_start() || sources.have_allocations() {
        // An injected agent gets others at the next start.
        let is_injected = present(pid).is_some_and(|present| present.control.is_some());
        let own = if is_injected { Sources::NONE } else { sources_of(pid as u32) };
        let setting = sources.of_agent();
        match own.name() {
            _ if sources.probes_are_among(&own) => {}
            own if own.is_empty() && !sources.need_start() => {}
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

/// The sources of `pid`, running or ended; none if it is not sampled.
pub(crate) fn sources_of(pid: u32) -> Sources {
    let present = match proc::start_time(pid) {
        Some(_) => present(pid as i32),
        None => regions_of(pid).find_map(|(_, path)| Attached::peek(&path).ok().map(Present::from)),
    };
    let sampling = present.filter(|present| present.sampling);
    sampling.map_or(Sources::NONE, |present| Sources::of_process(&present.source.0, &present.probes))
}

/// Stops the sampling started by [`attach`]. The process keeps running.
pub(crate) fn detach(pid: u32) -> Result<(), InjectError> {
    let pid = pid as i32;
    facts::check(pid)?;
    match present(pid) {
        None => Err(InjectError::NotAttached(pid)),
        Some(Present { control: None, .. }) => Err(InjectError::Preloaded(pid)),
        Some(Present { sampling: false, .. }) => Err(InjectError::NotAttached(pid)),
        Some(Present { control, .. }) => call_agent(pid, control, Request::of(Command::Stop)),
    }
}

/// Resumes the sampling of a process with its previous settings, if it was attached and then detached. True if it was.
pub(crate) fn resume(pid: u32) -> Result<bool, InjectError> {
    let ended = present(pid as i32).filter(|present| present.control.is_some() && !present.sampling);
    let Some(Present { source: (_, period_ns), .. }) = ended else { return Ok(false) };
    let frequency = (1_000_000_000 + period_ns / 2).checked_div(period_ns).unwrap_or(0) as u32;
    attach(
        pid,
        &Settings {
            sources: Sources::default(),
            frequency: frequency.clamp(1, rate::MAX_FREQUENCY),
            max_stack: MAX_DEPTH as u32,
            max_overhead: Overhead::default(),
            native_only: false,
            unwinding: Unwinding::default(),
            copy_limit: CopyLimit::default(),
            buffer: Buffer::default(),
            ends_with_us: true,
            destination: Destination::Flight,
        },
    )?;
    Ok(true)
}

/// The current agent of the process: the one whose region it has mapped.
fn present(pid: i32) -> Option<Present> {
    let deadline = Instant::now() + BEGIN;
    loop {
        match agent_state(pid) {
            AgentState::Found(present) => return Some(present),
            AgentState::Beginning if Instant::now() < deadline => std::thread::sleep(CHECK_EVERY),
            AgentState::Beginning | AgentState::Nothing => return None,
        }
    }
}

/// The state of the agent in a process.
enum AgentState {
    Nothing,
    /// It has created its region, but not written its Process record.
    Beginning,
    Found(Present),
}

/// The regions of processes with this pid, running or ended.
fn regions_of(pid: u32) -> impl Iterator<Item = (RegionName, PathBuf)> {
    let entries =
        session::directories().into_iter().flat_map(|path| std::fs::read_dir(path).into_iter().flatten());
    entries.flatten().filter_map(move |entry| {
        let name = RegionName::parse(&entry.file_name()).filter(|name| name.pid == pid)?;
        Some((name, entry.path()))
    })
}

fn agent_state(pid: i32) -> AgentState {
    let start_time = proc::start_time(pid as u32);
    let mut look = AgentState::Nothing;
    for (name, path) in regions_of(pid as u32) {
        let peek = Attached::peek(&path);
        let told = matches!(&peek, Ok(peek) if !peek.exe.is_empty());
        match peek {
            // A region that is not mapped is from before an exec.
            Ok(peek) if told && facts::maps(pid as u32, &path) => {
                let sampling = peek.sampling;
                look = AgentState::Found(peek.into());
                // An older region, from before a change of the rate, may still be mapped.
                if sampling {
                    return look;
                }
            }
            Ok(_) | Err(AttachError::Unfinished)
                if !told && Some(name.start_time) == start_time && matches!(look, AgentState::Nothing) =>
            {
                look = AgentState::Beginning;
            }
            _ => {}
        }
    }
    look
}

fn strings(settings: &Settings, directory: &Path, region: Option<&HandedRegion>) -> Vec<u8> {
    let place = match region {
        Some(region) => ("REGION", region.setting()),
        None => ("DIR", directory.display().to_string()),
    };
    let (session, mode) = match settings.destination {
        // Its recorder reads it from the start on, and records of allocations must not be overwritten unread.
        Destination::Flight if settings.ends_with_us && settings.sources.have_allocations() => (0, "discard"),
        Destination::Flight => (0, "overwrite"),
        Destination::Session { nonce, mode, .. } => (nonce, mode),
    };
    let own = std::process::id();
    let recorder = match proc::start_time(own).filter(|_| settings.ends_with_us) {
        Some(start) => format!("{own}-{start}"),
        None => String::new(),
    };
    let tables = match Cache::find() {
        Ok(Some(cache)) => cache.directory().display().to_string(),
        _ => "0".into(),
    };
    let boot = liveness::boot_id().map(|boot| ("BOOT", format!("{:032x}", u128::from_be_bytes(boot))));
    let pool = (settings.buffer.bytes() > 0).then(|| ("POOL", settings.buffer.to_string()));
    let settings = [
        place,
        ("SESSION", format!("{session:016x}")),
        ("MODE", mode.into()),
        ("EVENT", settings.sources.of_injected()),
        ("FREQ", settings.frequency.to_string()),
        ("MAX_STACK", settings.max_stack.to_string()),
        ("MAX_OVERHEAD", settings.max_overhead.to_string()),
        ("UNWIND", settings.unwinding.name()),
        ("COPY_LIMIT", settings.copy_limit.to_string()),
        ("NATIVE_ONLY", u8::from(settings.native_only).to_string()),
        ("TABLES", tables),
        ("RECORDER", recorder),
    ];
    let named = settings.into_iter().chain(boot).chain(pool);
    named.flat_map(|(name, value)| format!("SELFWIND_{name}={value}\0").into_bytes()).collect()
}
