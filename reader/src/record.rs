//! `record`: runs a command under the agent, or follows a process that has it, and writes a profile.
//!
//! The command comes first: its exit status is ours, its signals reach it, and whatever goes wrong here
//! after it was started leaves it running as it would without us.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::attach::Bell;
use crate::collector::{Collector, Scope};
use crate::follow::{Flow, Reason, follow};
use crate::inject::Sampling;
use crate::inject::renewal::Renewal;
use crate::notices::{Notices, warn};
use crate::program::ProgramError;
use crate::rate::Overhead;
use crate::recording::{Output, Recording};
use crate::session::Session;
use crate::snapshot::{self, Snapshots};
use crate::source::Source;
use crate::spawn::{self, Child};
use crate::tables::cache::{self, Cache};
use crate::watch::{self, Happening};
use crate::{agent_file, inject, list, liveness, program};

/// Our own failure, as `env`, `timeout` and others tell it.
pub const OWN_FAILURE: u8 = 125;
/// How long a command may take to end after the SIGTERM of `-d`.
const PATIENCE: Duration = Duration::from_secs(5);
/// Two Ctrl-C within this time are meant for the recording.
const TWICE: Duration = Duration::from_secs(1);
/// How long processes that outlive the command may take to notice the stop flag.
const GRACE: Duration = Duration::from_millis(30);

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
            account(options.notices);
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
            .with_context(|| format!("{}: cannot write the profile", recording.path().display()))?;
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
    let mut snapshots = Snapshots::new(options, session, recording.path());
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

/// Tells who used how much of the processor.
fn account(notices: Notices) {
    let seconds = |who| {
        let usage = getrusage(who).ok()?;
        let micros = [usage.user_time(), usage.system_time()].map(|t| t.tv_sec() * 1_000_000 + t.tv_usec());
        Some(micros.iter().sum::<i64>() as f64 / 1e6)
    };
    if let (Some(own), Some(command)) = (seconds(UsageWho::RUSAGE_SELF), seconds(UsageWho::RUSAGE_CHILDREN)) {
        notices.detail(format_args!("CPU time: recorder {own:.4} s, command {command:.4} s"));
    }
}

/// The exit status as a shell tells it.
pub(crate) fn shell_status(status: ExitStatus) -> u8 {
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .map_or(OWN_FAILURE, |code| code as u8)
}
