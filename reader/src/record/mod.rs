//! `record`: runs a command under the agent, or follows a process that has it, and writes a profile.
//!
//! The command comes first: its exit status is ours, its signals reach it, and whatever goes wrong here
//! after it was started leaves it running as it would without us.

pub mod delay;
pub mod destination;
pub mod generated_code;
pub mod interpreter;
pub mod kernel_symbols;
pub mod program;
pub mod recording;
pub mod second_mappings;
pub mod snapshot;
pub mod spawn;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selfwind_profile::symbolize::SymbolSources;

use crate::drain::collector::{Collector, Scope};
use crate::drain::follow::{Flow, Reason, follow};
use crate::drain::watch::{self, Happening};
use crate::list;
use crate::record::program::ProgramError;
use crate::record::recording::{Output, Recording};
use crate::record::snapshot::Snapshots;
use crate::record::spawn::Child;
use crate::sampling::buffer::Buffer;
use crate::sampling::rate::Overhead;
use crate::sampling::source::Source;
use crate::tables::cache::{self, Cache};
use crate::target::agent_file;
use crate::target::attach::Bell;
use crate::target::inject;
use crate::target::inject::Sampling;
use crate::target::inject::renewal::Renewal;
use crate::target::liveness;
use crate::target::session::Session;
use crate::target::shortage;
use crate::terminal::notices::{Notices, warn};

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
    /// What each process can hold back at least.
    pub buffer: Buffer,
    /// Names are stored in the profile when the recording ends.
    pub names: bool,
    /// Where they come from.
    pub sources: SymbolSources,
    /// How much to say.
    pub notices: Notices,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

impl RecordOptions {
    /// For an agent that is put into a running process.
    fn settings(&self) -> inject::Settings {
        let Self { frequency, max_stack, max_overhead, .. } = *self;
        inject::Settings { frequency, max_stack, max_overhead, ends_with_us: true }
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
    let signals = watch::hold_signals(options.snapshot)
        .map_err(|error| anyhow::anyhow!("cannot hold signals: {}", shortage::explain(&error)))?;
    let mut child = match spawn::start(&program, &options.command, &environment, &signals.given, None) {
        Ok(child) => child,
        Err(error) => {
            output.abandon();
            session.remove();
            return Err(error.into());
        }
    };
    ask_for_priority();
    shortage::raise_open_files();
    let happenings = watch_child(&child, signals, &session);
    let recorded = match &happenings {
        Ok(happenings) => record_child(options, &session, tables, output, happenings, &mut child),
        Err(error) => Err(anyhow::anyhow!("{error:#}")),
    };
    session.stop();
    session.remove();
    let ended = match recorded {
        Ok((recording, ended)) => {
            let status = if ended { Some(shell_status(child.wait()?)) } else { None };
            account(options.notices);
            let used_ns = command_ns().filter(|_| ended && options.delay.is_none());
            recording.end(status.map(i32::from), used_ns, happenings.as_ref().ok()).map(|()| status)
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
            let status = accompany(&mut child, happenings.ok())?;
            Ok(if status == 0 { OWN_FAILURE } else { status })
        }
    }
}

/// What happens to the command and to us. Without it, signals end us as they do others.
fn watch_child(
    child: &Child,
    signals: watch::Held,
    session: &Session,
) -> anyhow::Result<Receiver<Happening>> {
    let begun = || {
        let pidfd = spawn::pidfd(child.id())
            .map_err(|error| anyhow::anyhow!(shortage::explain(&error)))
            .context("cannot watch the command (pidfd_open, Linux 5.3)")?;
        watch::start(signals, Some(pidfd), session.bell()).context("cannot start a thread")
    };
    begun().inspect_err(|_| watch::release_signals())
}

/// Waits for a command that is not recorded any more: what is sent to us is still meant for it.
fn accompany(child: &mut Child, happenings: Option<Receiver<Happening>>) -> io::Result<u8> {
    let pid = Pid::from_raw(child.id() as i32);
    while let Some(happenings) = &happenings
        && child.try_wait()?.is_none()
    {
        match happenings.recv() {
            Ok(Happening::Signal { signal, sent: true }) => drop(kill(pid, signal)),
            Ok(Happening::Signal { .. }) => {}
            Ok(Happening::ProgramEnded) | Err(_) => break,
        }
    }
    Ok(shell_status(child.wait()?))
}

/// Records a started command to its end. The second value is false if it outlived its deadline and our patience.
fn record_child(
    options: &RecordOptions,
    session: &Session,
    tables: Option<Cache>,
    output: Output,
    happenings: &Receiver<Happening>,
    child: &mut Child,
) -> anyhow::Result<(Recording, bool)> {
    let deadline = options.deadline();
    let mut recording = Recording::begin(output.commit(child.id())?, tables, options, None)?;
    let mut collector =
        Collector::new(session.directories(), Scope::Everything, options.notices).with_buffer(options.buffer);
    if options.snapshot {
        collector = collector.at_rest();
        options
            .notices
            .say(format_args!("flight recorder: `kill -USR2 {}` writes what it holds", std::process::id()));
    }
    let ended = follow_command(options, &mut recording, &mut collector, session, child, happenings, deadline)
        .and_then(|ended| {
            session.stop();
            if options.snapshot || collector.somebody_left() {
                std::thread::sleep(GRACE);
            }
            collector.finish(&mut recording)?;
            Ok(ended)
        })
        .map_err(|error| unwritten(recording.path(), &error))?;
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
    session.stop();
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
    let lives = liveness::start_time(pid).is_some();
    if lives {
        inject::check_source(pid, &options.source)?;
    }
    // What can fail comes first: from the attach on, the process is sampled.
    let signals = watch::hold_signals(false).context("cannot hold signals")?;
    ask_for_priority();
    shortage::raise_open_files();
    let bell = Arc::new(Bell::private().context("cannot map a page")?);
    let output = Output::prepare(options.output.as_deref())?;
    let sampling = match lives.then(|| attach(options, pid)).transpose() {
        Ok(sampling) => sampling,
        Err(error) => {
            output.abandon();
            return Err(error);
        }
    };
    let ours =
        Ours { pid: sampling.is_some_and(Sampling::ends_with_us).then_some(pid), notices: options.notices };
    let (recording, happenings) =
        follow_process(&as_sampled(options, pid, sampling), pid, sampling, output, signals, &bell, ours)?;
    recording.end(None, None, Some(&happenings))?;
    Ok(0)
}

/// A process that is sampled as long as this recorder follows it. Dropping ends that, whatever went wrong.
struct Ours {
    pid: Option<u32>,
    notices: Notices,
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Some(pid) = self.pid
            && liveness::start_time(pid).is_some()
            && let Err(error) = inject::detach(pid)
        {
            self.notices.say(format_args!(
                "process {pid} is still sampled ({error}); `selfwind attach --detach -p {pid}` ends that"
            ));
        }
    }
}

/// Records a running process until somebody says so or it has ended.
fn follow_process(
    options: &RecordOptions,
    pid: u32,
    sampling: Option<Sampling>,
    output: Output,
    signals: watch::Held,
    bell: &Arc<Bell>,
    ours: Ours,
) -> anyhow::Result<(Recording, Receiver<Happening>)> {
    // After the attach, because that may make the directory that is looked through.
    let directories = crate::target::session::directories();
    let mut collector =
        Collector::new(directories, Scope::Process(pid), options.notices).with_buffer(options.buffer);
    if let Err(error) = collector.find_process(pid) {
        output.abandon();
        return Err(error.into());
    }
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
    let followed = if sampling.is_some_and(Sampling::is_attached) {
        let mut listener = Renewal::new(&mut recording, pid, options.settings(), options.notices);
        follow(&mut collector, bell, &happenings, deadline, &mut listener, &mut |_| Flow::Finish)
    } else {
        follow(&mut collector, bell, &happenings, deadline, &mut recording, &mut |_| Flow::Finish)
    };
    drop(ours);
    followed
        .and_then(|_| collector.finish(&mut recording))
        .map_err(|error| unwritten(recording.path(), &error))?;
    Ok((recording, happenings))
}

/// The profile cannot be written any further, and what there is to do.
fn unwritten(path: &Path, error: &io::Error) -> anyhow::Error {
    let (path, why) = (path.display(), shortage::explain(error));
    anyhow::anyhow!(
        "{path}: cannot write the profile: {why}; what was written until now is whole: selfwind report {path}"
    )
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
    if let Some(Sampling::Found { frequency, attached, .. }) = sampling
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

/// Has the scheduler prefer us to what we record, where that is allowed (root): among hundreds of busy threads an equal
/// share of the processor would not be enough to take all their samples. We use little of it. No matter if it is not.
fn ask_for_priority() {
    const NICE: i32 = -10;
    if rustix::process::getpriority_process(None).is_ok_and(|nice| nice > NICE) {
        let _ = rustix::process::setpriority_process(None, NICE);
    }
}

/// CPU time of the command and of all it waited for, in nanoseconds.
fn command_ns() -> Option<u64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
    let micros = [usage.user_time(), usage.system_time()].map(|t| t.tv_sec() * 1_000_000 + t.tv_usec());
    u64::try_from(micros.iter().sum::<i64>()).ok()?.checked_mul(1000)
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
