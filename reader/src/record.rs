//! `record`: runs a command under the agent, or follows a process that has it, and writes a profile.
//!
//! The command comes first: its exit status is ours, its signals reach it, and whatever goes wrong here
//! after it was started leaves it running as it would without us.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::attach::Bell;
use crate::collector::{Collector, Scope};
use crate::delay::Delay;
use crate::destination::{Destination, with_suffix};
use crate::follow::{Flow, Listener, Reason, follow};
use crate::generated_code::GeneratedCodeKeeper;
use crate::inject::Sampling;
use crate::inject::renewal::Renewal;
use crate::kernel_symbols::KernelSymbols;
use crate::notices::{Notices, warn};
use crate::output::{Format, Grouping};
use crate::profile_file::{End, Event, ProfileWriter, SessionInfo};
use crate::program::ProgramError;
use crate::rate::Overhead;
use crate::session::Session;
use crate::snapshot::{self, Snapshots};
use crate::source::Source;
use crate::spawn::{self, Child};
use crate::stats::Tally;
use crate::symbolize::SymbolSources;
use crate::tables::builder::Builder;
use crate::tables::cache::{self, Cache};
use crate::watch::{self, Happening};
use crate::{agent_file, clock, inject, list, liveness, open, program};

/// Our own failure, as `env`, `timeout` and others tell it.
pub const OWN_FAILURE: u8 = 125;
/// How long a command may take to end after the SIGTERM of `-d`.
const PATIENCE: Duration = Duration::from_secs(5);
/// Two Ctrl-C within this time are meant for the recording.
const TWICE: Duration = Duration::from_secs(1);
/// How long processes that outlive the command may take to notice the stop flag.
const GRACE: Duration = Duration::from_millis(30);
/// How soon a profile can be read while it is written.
const FLUSH_EVERY: Duration = Duration::from_millis(250);
/// How long a recording that is over waits for the unwind tables of the next one.
const TABLES_PATIENCE: Duration = Duration::from_millis(200);
/// Different notes of agents that are shown.
const NOTES_LIMIT: usize = 20;
/// Bytes of the command line kept in the profile.
const COMMAND_LIMIT: usize = 4096;

/// What to record and how.
#[derive(Clone, Debug, Default)]
pub struct RecordOptions {
    /// Samples per second of CPU time.
    pub frequency: u32,
    /// What triggers them.
    pub source: Source,
    /// When to stop.
    pub duration: Option<Duration>,
    /// What is left out at the beginning.
    pub delay: Option<Duration>,
    /// Where to write.
    pub output: Option<PathBuf>,
    /// Begin the stacks of another format with their threads.
    pub per_thread: bool,
    /// Show the result to the user.
    pub open: bool,
    /// The running process; otherwise `command` is run.
    pub pid: Option<u32>,
    /// Write what rings hold, at a signal or at once, instead of draining them all the time.
    pub snapshot: bool,
    /// Frames kept of a stack.
    pub max_stack: u32,
    /// What sampling may cost.
    pub max_overhead: Overhead,
    /// How much to say.
    pub notices: Notices,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

impl RecordOptions {
    /// For an agent that is put into a running process.
    fn settings(&self) -> inject::Settings {
        let Self { frequency, max_stack, max_overhead, .. } = *self;
        inject::Settings { frequency, max_stack, max_overhead }
    }

    /// When to stop, if the recording begins now.
    fn deadline(&self) -> Option<Instant> {
        Some(Instant::now() + self.delay.unwrap_or_default() + self.duration?)
    }
}

/// Records, and gives the exit status.
pub fn run(options: &RecordOptions) -> u8 {
    let result = match options.pid {
        Some(pid) => record_process(options, pid),
        None => record_command(options),
    };
    result.unwrap_or_else(|error| {
        warn(format_args!("{error:#}"));
        error.downcast_ref::<ProgramError>().map_or(OWN_FAILURE, ProgramError::exit_code)
    })
}

fn record_command(options: &RecordOptions) -> anyhow::Result<u8> {
    options.source.check()?;
    let name = options.command.first().context("no command given")?;
    let program = program::find(name, std::env::var_os("PATH").as_deref())?;
    let agent = agent_file::unpack()?;
    let output = Output::prepare(options.output.as_deref())?;
    list::reap_abandoned();
    let session = match Session::create() {
        Ok(session) => session,
        Err(error) => {
            output.abandon();
            return Err(error.into());
        }
    };
    options.notices.detail(format_args!("session {}", session.directory().display()));
    let mut environment = session.environment(options, &agent);
    let tables = table_cache(options.notices);
    environment.extend(tables.iter().map(|cache| (cache::VARIABLE.into(), cache.directory().into())));
    let signals = watch::hold_signals(options.snapshot).context("cannot hold signals")?;
    let mut child = match spawn::start(&program, &options.command, &environment, &signals.given, None) {
        Ok(child) => child,
        Err(error) => {
            output.abandon();
            session.remove();
            return Err(error.into());
        }
    };
    let recorded = record_child(options, &session, tables, output, signals, &mut child);
    session.bell().stop();
    session.remove();
    let ended = match recorded {
        Ok((recording, ended)) => {
            let status = if ended { Some(shell_status(child.wait()?)) } else { None };
            // Whoever is tired of waiting for names ends us; the profile is complete.
            watch::release_signals();
            recording.end(status.map(i32::from)).map(|()| status)
        }
        Err(error) => Err(error.context("the recording ends here, the command goes on")),
    };
    match ended {
        Ok(Some(status)) => Ok(status),
        Ok(None) => {
            let pid = child.id();
            options
                .notices
                .say(format_args!("process {pid} did not end on SIGTERM; it keeps running, unsampled"));
            Ok(0)
        }
        Err(error) => {
            warn(format_args!("{error:#}"));
            let status = shell_status(child.wait()?);
            Ok(if status == 0 { OWN_FAILURE } else { status })
        }
    }
}

/// Records a started command to its end. The second value is false if it outlived its deadline and our patience.
fn record_child(
    options: &RecordOptions,
    session: &Session,
    tables: Option<Cache>,
    output: Output,
    signals: watch::Held,
    child: &mut Child,
) -> anyhow::Result<(Recording, bool)> {
    let deadline = options.deadline();
    let pidfd = spawn::pidfd(child.id()).context("cannot watch the command (pidfd_open, Linux 5.3)")?;
    let happenings = watch::start(signals, Some(pidfd), session.bell()).context("cannot start a thread")?;
    let mut recording = Recording::begin(output.commit(child.id())?, tables, options, None)?;
    let directory = session.directory().to_owned();
    let mut collector = Collector::new(vec![directory], Scope::Everything, options.notices);
    if options.snapshot {
        collector = collector.at_rest();
        options
            .notices
            .say(format_args!("flight recorder: `kill -USR2 {}` writes what it holds", std::process::id()));
    }
    let ended =
        follow_command(options, &mut recording, &mut collector, session, child, &happenings, deadline)
            .and_then(|ended| {
                session.bell().stop();
                if options.snapshot || collector.somebody_left() {
                    std::thread::sleep(GRACE);
                }
                collector.finish(&mut recording)?;
                Ok(ended)
            })
            .with_context(|| format!("{}: cannot write the profile", recording.path.display()))?;
    Ok((recording, ended))
}

/// Drains until the command has ended (true), or outlives its deadline and our patience (false).
fn follow_command(
    options: &RecordOptions,
    recording: &mut Recording,
    collector: &mut Collector,
    session: &Session,
    child: &mut Child,
    happenings: &Receiver<Happening>,
    deadline: Option<Instant>,
) -> io::Result<bool> {
    let pid = Pid::from_raw(child.id() as i32);
    let mut snapshots = Snapshots::new(options, session, &recording.path);
    let (mut impatience, mut hurried) = (Impatience::default(), false);
    let mut answer = |happening| match happening {
        Happening::ProgramEnded => Flow::Finish,
        Happening::Signal { signal: watch::SNAPSHOT, .. } => {
            snapshots.take();
            Flow::Continue
        }
        // What the terminal sends has reached the command too; what was sent to us is meant for it.
        Happening::Signal { signal, sent: true } => {
            let _ = kill(pid, signal);
            Flow::Continue
        }
        Happening::Signal { signal, sent: false } => {
            hurried = signal == Signal::SIGINT && impatience.is_again();
            if hurried { Flow::Finish } else { Flow::Continue }
        }
    };
    let bell = session.bell();
    let reason = follow(collector, &bell, happenings, deadline, recording, &mut answer)?;
    if reason == Reason::Told && !hurried {
        return Ok(true);
    }
    bell.stop();
    let _ = kill(pid, Signal::SIGTERM);
    let mut answer = |happening| match happening {
        Happening::ProgramEnded => Flow::Finish,
        Happening::Signal { signal, sent } => {
            let harder = signal == Signal::SIGINT && !sent;
            let _ = kill(pid, if harder { Signal::SIGKILL } else { signal });
            Flow::Continue
        }
    };
    let deadline = Some(Instant::now() + PATIENCE);
    Ok(follow(collector, &bell, happenings, deadline, recording, &mut answer)? == Reason::Told)
}

/// Tells one Ctrl-C, which is the command's own affair, from two in a row.
#[derive(Default)]
struct Impatience {
    last: Option<Instant>,
}

impl Impatience {
    /// Whether the one before was just now.
    fn is_again(&mut self) -> bool {
        self.last.replace(Instant::now()).is_some_and(|last| last.elapsed() < TWICE)
    }
}

fn record_process(options: &RecordOptions, pid: u32) -> anyhow::Result<u8> {
    if options.snapshot {
        return snapshot::of_process(options, pid);
    }
    if liveness::start_time(pid).is_some() {
        inject::check_source(pid, &options.source)?;
    }
    // First, because it may make the directory that is looked through next.
    let sampling = if liveness::start_time(pid).is_some() { Some(attach(options, pid)?) } else { None };
    let options = &as_sampled(options, pid, sampling);
    let directories = crate::session::directories();
    let mut collector = Collector::new(directories, Scope::Process(pid), options.notices);
    collector.find_process(pid)?;
    let output = Output::prepare(options.output.as_deref())?;
    let signals = watch::hold_signals(false).context("cannot hold signals")?;
    let bell = Arc::new(Bell::private().context("cannot map a page")?);
    let happenings = watch::start(signals, None, bell.clone()).context("cannot start a thread")?;
    let mut recording = output
        .commit(pid)
        .and_then(|output| Recording::begin(output, table_cache(options.notices), options, None))?;
    let deadline = options.deadline();
    if deadline.is_none() {
        options
            .notices
            .say(format_args!("recording process {pid}; Ctrl-C ends the recording, not the process"));
    }
    let by_us = sampling == Some(Sampling::Begun);
    let renewable = by_us || matches!(sampling, Some(Sampling::Found { attached: true, .. }));
    let followed = if renewable {
        let mut listener = Renewal::new(&mut recording, pid, options.settings(), options.notices);
        follow(&mut collector, &bell, &happenings, deadline, &mut listener, &mut |_| Flow::Finish)
    } else {
        follow(&mut collector, &bell, &happenings, deadline, &mut recording, &mut |_| Flow::Finish)
    };
    followed
        .and_then(|_| {
            if by_us && let Err(error) = inject::detach(pid) {
                options.notices.detail(format_args!("not detached: {error}"));
            }
            collector.finish(&mut recording)
        })
        .with_context(|| "the profile could not be written any further")?;
    recording.end(None)?;
    Ok(0)
}

/// The cache of unwind tables. Without one everything works, more slowly.
pub(crate) fn table_cache(notices: Notices) -> Option<Cache> {
    Cache::find().unwrap_or_else(|error| {
        notices.say(format_args!("no cache of unwind tables: {error}"));
        None
    })
}

/// Has the process sampled if it is not; says whether that was needed.
pub(crate) fn attach(options: &RecordOptions, pid: u32) -> anyhow::Result<Sampling> {
    let sampling = inject::ensure(pid, options.settings())?;
    if sampling == Sampling::Begun {
        options.notices.detail(format_args!("process {pid}: the agent has been put into it"));
    }
    Ok(sampling)
}

/// The options with the rate at which the process is really sampled.
pub(crate) fn as_sampled(options: &RecordOptions, pid: u32, sampling: Option<Sampling>) -> RecordOptions {
    let mut options = options.clone();
    if let Some(Sampling::Found { frequency, attached }) = sampling
        && frequency != options.frequency
    {
        let rate = if frequency == 0 { "by events".into() } else { format!("{frequency} times a second") };
        let change = if attached {
            format!("; `selfwind attach -F {} -p {pid}` changes that", options.frequency)
        } else {
            String::new()
        };
        options.notices.say(format_args!("process {pid} is sampled already, {rate}{change}"));
        options.frequency = frequency;
    }
    options
}

/// The exit status as a shell tells it.
pub(crate) fn shell_status(status: ExitStatus) -> u8 {
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .map_or(OWN_FAILURE, |code| code as u8)
}

/// The profile to be, and the file made of it when another format is asked for.
pub(crate) struct Output {
    profile: Destination,
    export: Option<(Format, Destination)>,
}

impl Output {
    pub(crate) fn prepare(path: Option<&Path>) -> anyhow::Result<Self> {
        let format = path.and_then(Format::from_path);
        let Some((path, format)) = path.zip(format) else {
            return Ok(Self { profile: Destination::prepare(path)?, export: None });
        };
        let export = Destination::prepare(Some(path))?;
        match Destination::prepare(Some(&with_suffix(path, ".selfwind.data"))) {
            Ok(profile) => Ok(Self { profile, export: Some((format, export)) }),
            Err(error) => {
                export.abandon();
                Err(error.into())
            }
        }
    }

    fn abandon(self) {
        self.profile.abandon();
        if let Some((_, export)) = self.export {
            export.abandon();
        }
    }

    pub(crate) fn commit(self, pid: u32) -> anyhow::Result<Committed> {
        let (profile, path) = self.profile.commit(pid)?;
        let export =
            self.export.map(|(format, export)| anyhow::Ok((format, export.commit(pid)?))).transpose()?;
        Ok(Committed { profile, path, export })
    }
}

pub(crate) struct Committed {
    profile: File,
    path: PathBuf,
    export: Option<(Format, (File, PathBuf))>,
}

/// A profile being written.
pub(crate) struct Recording {
    writer: ProfileWriter<File>,
    path: PathBuf,
    export: Option<(Format, (File, PathBuf))>,
    /// Makes the tables that programs lack.
    tables: Option<Builder>,
    tally: Tally,
    notices: Notices,
    /// What agents had to say, each text once.
    notes: BTreeSet<String>,
    generated: GeneratedCodeKeeper,
    kernel_symbols: KernelSymbols,
    started_ns: u64,
    delay: Delay,
    per_thread: bool,
    open: bool,
    flushed: Instant,
}

impl Listener for Recording {
    fn event(&mut self, event: Event) -> io::Result<()> {
        let Some(event) = self.delay.filter(event) else { return Ok(()) };
        if let Event::Process(info) = &event
            && !info.note.is_empty()
            && self.notes.len() < NOTES_LIMIT
            && self.notes.insert(info.note.clone())
        {
            self.notices.say(format_args!("process {} ({}): {}", info.pid, info.exe.display(), info.note));
        }
        if let Event::Setting(setting) = &event
            && self.notes.len() < NOTES_LIMIT
            && self.notes.insert(format!("{}: {}", setting.key, setting.value))
        {
            self.notices.say(format_args!("{}: {}", setting.key, setting.value));
        }
        if let Event::Sample(sample) = &event {
            for symbol in self.kernel_symbols.news(sample) {
                self.writer.push(&Event::KernelSymbol(symbol))?;
            }
        }
        if let Some(tables) = &mut self.tables {
            tables.observe(&event);
        }
        for code in self.generated.observe(&event) {
            self.writer.push(&Event::Generated(code))?;
        }
        self.tally.add(&event);
        self.writer.push(&event)
    }

    fn pause(&mut self) -> io::Result<()> {
        if self.flushed.elapsed() >= FLUSH_EVERY {
            self.flushed = Instant::now();
            self.writer.flush()?;
        }
        Ok(())
    }

    fn save(&mut self) -> io::Result<()> {
        self.flushed = Instant::now();
        self.writer.flush()
    }
}

impl Recording {
    /// Begins a profile of what happens since `since` (CLOCK_MONOTONIC), or from now on.
    pub(crate) fn begin(
        output: Committed,
        tables: Option<Cache>,
        options: &RecordOptions,
        since: Option<u64>,
    ) -> anyhow::Result<Self> {
        let now = clock::monotonic_ns();
        let started_ns = since.unwrap_or(now);
        let begins_ns = started_ns + options.delay.map_or(0, |delay| delay.as_nanos() as u64);
        let system = nix::sys::utsname::uname().context("uname failed")?;
        let mut room = COMMAND_LIMIT;
        let command = options.command.iter().map(|argument| argument.to_string_lossy().into_owned());
        let session = SessionInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            host: system.nodename().to_string_lossy().into_owned(),
            kernel: system.release().to_string_lossy().into_owned(),
            started_realtime_ns: clock::realtime_ns().saturating_sub(now.saturating_sub(started_ns)),
            started_ns,
            command: command
                .take_while(|argument| {
                    let fits = argument.len() < room;
                    room = room.saturating_sub(argument.len() + 1);
                    fits
                })
                .collect(),
            frequency: options.source.frequency(options.frequency),
            source: options.source.name(),
        };
        let mut recording = Self {
            writer: ProfileWriter::new(output.profile)
                .with_context(|| format!("{}: cannot write the profile", output.path.display()))?,
            path: output.path,
            export: output.export,
            tables: tables.and_then(|cache| Builder::start(cache, options.notices)),
            tally: Tally::default(),
            notices: options.notices,
            notes: BTreeSet::new(),
            kernel_symbols: KernelSymbols::default(),
            // The duration is that of what is in the profile.
            started_ns: begins_ns,
            // A flight recorder holds samples of before, which are welcome.
            delay: Delay::until(if options.delay.is_some() { begins_ns } else { 0 }),
            per_thread: options.per_thread,
            // Not each snapshot.
            open: options.open && since.is_none(),
            generated: GeneratedCodeKeeper::default(),
            flushed: Instant::now(),
        };
        recording.event(Event::Session(session))?;
        recording.writer.flush()?;
        Ok(recording)
    }

    /// Ends the profile, makes the other format of it, and says what there is.
    pub(crate) fn end(mut self, status: Option<i32>) -> anyhow::Result<()> {
        let notices = self.notices;
        let ns = clock::monotonic_ns();
        if let Some(tables) = self.tables.take() {
            tables.finish(TABLES_PATIENCE);
        }
        self.event(Event::End(End { ns, wall_ns: ns.saturating_sub(self.started_ns), status }))?;
        let path = self.path.display();
        self.writer.flush().with_context(|| format!("{path}: cannot write the profile"))?;
        let stats = self.tally.finish(self.writer.bytes_written());
        let mut shown = None;
        let next = if let Some((format, (mut file, exported))) = self.export.take() {
            self.export_to(format, &mut file).with_context(|| {
                format!("{}: cannot write it; the profile is kept in {path}", exported.display())
            })?;
            let _ = std::fs::remove_file(&self.path);
            shown = Some(exported.clone());
            exported.display().to_string()
        } else {
            format!("{path}; next: selfwind report {path}")
        };
        if self.kernel_symbols.are_hidden() {
            notices.say(
                "functions of the kernel have no names: /proc/kallsyms hides them (run as root, or sysctl kernel.kptr_restrict=0)",
            );
        }
        notices.say(format_args!("{} -> {next}", stats.summary()));
        if let Some(text) = stats.lowered() {
            notices.say(text);
        }
        if stats.samples == 0 && stats.detail.images == 0 {
            notices.say("no process came up with the agent (is SELFWIND_ENABLE=0 set?); `selfwind record -v` tells more");
        } else if stats.samples == 0 && stats.detail.frequency == 0 {
            notices.say("the events did not happen in the processes, or could not be had");
        } else if stats.samples == 0 {
            notices.say(
                "the processes used less CPU time than one period of a sample; a higher -F catches more",
            );
        }
        if self.open && stats.samples > 0 {
            let shown = shown.map_or_else(|| self.draw(), Ok)?;
            // What was recorded is there: that it cannot be shown is no failure of the recording.
            open::open(&shown).unwrap_or_else(warn);
        }
        Ok(())
    }

    fn export_to(&self, format: Format, file: &mut File) -> anyhow::Result<()> {
        let grouping = if self.per_thread { Grouping::Thread } else { Grouping::None };
        let sources = SymbolSources { silent: self.notices == Notices::Quiet, ..SymbolSources::default() };
        crate::output::export_grouped(format, grouping, &self.path, &sources, file).map(|_| ())
    }

    /// Draws the flame graph of the profile beside it.
    fn draw(&self) -> anyhow::Result<PathBuf> {
        let drawn = self.path.with_extension("svg");
        let cannot = || format!("{}: cannot draw the flame graph", drawn.display());
        let mut file = File::create(&drawn).with_context(cannot)?;
        self.export_to(Format::Flamegraph, &mut file).with_context(cannot)?;
        self.notices.say(format_args!("flame graph in {}", drawn.display()));
        Ok(drawn)
    }
}
