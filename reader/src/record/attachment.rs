//! Starts sampling a running process for a recording, and stops it when the recording ends.

use std::fs::File;

use anyhow::Context;
use memmap2::MmapOptions;
use shm_format::layout::CHUNK_SPACE;

use crate::drain::collector::Collector;
use crate::proc;
use crate::record::options::RecordOptions;
use crate::sampling::settings::SamplingSettings;
use crate::tables::builder;
use crate::target::inject::{self, Destination, Sampling, Settings};
use crate::target::process_search::Recorded;
use crate::target::session::Session;
use crate::terminal::notices::Notices;

/// Address space for the region of a process, for a second look at it at the end, and for what this command needs beside it, in
/// bytes.
const ROOM: usize = 2 * CHUNK_SPACE + (32 << 20);

/// Whether this process may map as much.
fn has_room() -> bool {
    // A mapping may be longer than its file, and one that cannot be written is charged to nobody.
    let file = File::open("/proc/self/exe");
    file.is_ok_and(|file| MmapOptions::new().len(ROOM).map_raw_read_only(&file).is_ok())
}

/// The settings for an injected agent.
pub(crate) fn settings(sampling: &SamplingSettings) -> Settings {
    Settings {
        sources: sampling.sources.clone(),
        frequency: sampling.frequency,
        max_stack: sampling.max_stack,
        max_overhead: sampling.max_overhead,
        native_only: sampling.native_only,
        unwinding: sampling.unwinding,
        copy_limit: sampling.copy_limit,
        buffer: sampling.buffer,
        ends_with_us: true,
        destination: Destination::default(),
    }
}

/// Starts sampling the process if it is not sampled yet. Returns what was found.
pub(crate) fn attach(sampling: &SamplingSettings, pid: u32, notices: Notices) -> anyhow::Result<Sampling> {
    if !sampling.plugins.is_empty() {
        notices.say(format_args!(
            "process {pid} is already running, and plug-ins are loaded at the start only; start it with `selfwind record --plugin FILE -- CMD`"
        ));
    }
    // A process is not changed if it could not be recorded.
    if inject::found(pid).is_none() && !has_room() {
        anyhow::bail!(
            "process {pid} is not recorded: that takes {} MiB of address space, and this command's limit leaves less; raise it (`ulimit -v unlimited`)",
            ROOM >> 20
        );
    }
    builder::before_attach(pid, notices);
    let sampling = inject::ensure(pid, &settings(sampling))?;
    if sampling == Sampling::Begun {
        notices.detail(format_args!("process {pid}: agent injected"));
    }
    Ok(sampling)
}

/// Has `collector` inject the agent into processes of the command with id `command` that do not load it, if an injected one can
/// provide a clock of the recording. With `overwrite`, a process keeps its latest samples, otherwise all until its pool is full.
pub(crate) fn search_processes(
    collector: &mut Collector,
    session: &Session,
    command: u32,
    sampling: &SamplingSettings,
    overwrite: bool,
) -> anyhow::Result<()> {
    if !sampling.sources.can_be_injected() {
        return Ok(());
    }
    let recorded = Recorded { overwrite, ..recorded(session, command) };
    // Those have no loader, as a rule.
    let sources = sampling.sources.without_probes();
    let settings = Settings { sources, ..settings(sampling) };
    collector.search_processes(recorded, settings).context("cannot start a thread")
}

/// Has `collector` inject the agent into processes that the running process `pid` starts from now on, which belong to `session`.
pub(crate) fn search_started(
    collector: &mut Collector,
    session: &Session,
    pid: u32,
    sampling: &SamplingSettings,
) -> anyhow::Result<()> {
    collector.add_session(session.directory().to_owned());
    let recorded = Recorded { was_running: true, ..recorded(session, pid) };
    collector.search_processes(recorded, settings(sampling)).context("cannot start a thread")
}

fn recorded(session: &Session, root: u32) -> Recorded {
    Recorded {
        root,
        was_running: false,
        directory: session.directory().to_owned(),
        session: session.nonce(),
        overwrite: false,
    }
}

/// The options with the rate at which the process is actually sampled.
pub(super) fn as_sampled(options: &RecordOptions, pid: u32, sampling: Option<Sampling>) -> RecordOptions {
    let mut options = options.clone();
    options.sampling.sources.take_over(inject::sources_of(pid));
    if let Some(Sampling::Found { frequency, attached, .. }) = sampling
        && frequency != options.sampling.frequency
    {
        let rate = match frequency {
            0 if !options.sampling.sources.have_clock() => format!("by {}", options.sampling.sources.name()),
            0 => "by events".into(),
            _ => format!("{frequency} times a second"),
        };
        let change = if attached {
            format!("; `selfwind attach -F {} -p {pid}` changes that", options.sampling.frequency)
        } else {
            String::new()
        };
        options.notices.say(format_args!("process {pid} is already being sampled, {rate}{change}"));
        options.sampling.frequency = frequency;
    }
    options
}

/// A process that is sampled only while this recorder follows it. Dropping this stops the sampling, also after errors.
pub(crate) struct SampledProcess {
    pub(crate) pid: Option<u32>,
    pub(crate) notices: Notices,
}

impl Drop for SampledProcess {
    fn drop(&mut self) {
        if let Some(pid) = self.pid
            && proc::start_time(pid).is_some()
            && let Err(error) = inject::detach(pid)
        {
            self.notices.say(format_args!(
                "process {pid} is still being sampled ({error}); `selfwind attach --detach -p {pid}` stops that"
            ));
        }
    }
}
