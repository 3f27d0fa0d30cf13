//! Records a command from its start to its end.
//!
//! The command comes first: the recorder exits with its status, signals reach it, and whatever goes wrong in the recorder
//! after the command was started leaves the command running.

use std::io;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::drain::collector::{Collector, Scope};
use crate::drain::follow::{Flow, Reason, follow};
use crate::drain::watch::{self, WatchEvent};
use crate::record::attachment::search_processes;
use crate::record::exit_status::{OWN_FAILURE, shell_status};
use crate::record::options::RecordOptions;
use crate::record::priority::RaisedPriority;
use crate::record::program;
use crate::record::recording::{Output, Recording, cannot_continue};
use crate::record::snapshot::Snapshots;
use crate::record::spawn::{self, Child};
use crate::tables::builder;
use crate::tables::cache::{self, Cache};
use crate::target::agent_file;
use crate::target::leftovers;
use crate::target::session::Session;
use crate::target::shortage;
use crate::terminal::notices::{Notices, warn};

/// How long a command may take to end after the SIGTERM of `-d`.
const TERM_TIMEOUT: Duration = Duration::from_secs(5);
/// Two Ctrl-C within this time end the recording.
const DOUBLE_PRESS: Duration = Duration::from_secs(1);
/// How long processes that outlive the command get to notice the stop flag.
const STOP_GRACE: Duration = Duration::from_millis(30);

/// Records the command in `options` and returns its exit status.
pub(super) fn record_command(options: &RecordOptions) -> anyhow::Result<u8> {
    options.sampling.check()?;
    let name = options.command.first().context("no command given")?;
    let program = program::find(name, std::env::var_os("PATH").as_deref())?;
    program.check(&options.sampling.sources)?;
    let mut options = options.clone();
    options.sampling.sources.resolve_sites(&program.path)?;
    let options = &options;
    let agent = agent_file::unpack_for(&options.sampling.sources)?;
    let output = Output::of(options)?;
    leftovers::reap_abandoned();
    let session = match Session::create() {
        Ok(session) => session,
        Err(error) => {
            output.abandon();
            return Err(error.into());
        }
    };
    options.notices.detail(format_args!("session {}", session.directory().display()));
    if options.sampling.sources.have_wall() {
        session.ask_for_changes();
    }
    let mut environment = session.environment(&options.sampling, options.snapshot, &agent);
    if options.notices == Notices::Verbose {
        environment.push(("SELFWIND_VERBOSE".into(), "1".into()));
    }
    let tables = Cache::of_user(options.notices);
    if let Some(cache) = &tables {
        builder::before_start(cache, &program.path, options.notices);
    }
    environment.extend(tables.iter().map(|cache| (cache::VARIABLE.into(), cache.directory().into())));
    let signals = watch::block_signals(options.takes_snapshots())
        .map_err(|error| anyhow::anyhow!("cannot block signals: {}", shortage::explain(&error)))?;
    let mut child = match spawn::start(&program, &options.command, &environment, &signals.original_mask, None)
    {
        Ok(child) => child,
        Err(error) => {
            output.abandon();
            session.remove();
            return Err(error.into());
        }
    };
    session.doorbell().tell_unsampled_exec(child.id());
    let priority = RaisedPriority::begin();
    shortage::raise_open_files();
    let events = watch_child(&child, signals.with_interval(options.every), &session);
    let recorded = match &events {
        Ok(events) => record_child(options, &session, tables, output, events, &mut child),
        Err(error) => Err(anyhow::anyhow!("{error:#}")),
    };
    drop(priority);
    session.stop();
    session.remove();
    let ended = match recorded {
        Ok((recording, ended)) => {
            let status = if ended { Some(shell_status(child.wait()?)) } else { None };
            print_cpu_time(options.notices);
            let used_ns = command_ns().filter(|_| ended && options.delay.is_none());
            recording.end(status.map(i32::from), used_ns, events.as_ref().ok()).map(|()| status)
        }
        Err(error) => Err(error.context("recording stopped; the command keeps running")),
    };
    match ended {
        Ok(Some(status)) => Ok(status),
        Ok(None) => {
            let pid = child.id();
            options.notices.say(format_args!(
                "process {pid} has not ended after SIGTERM; it keeps running, no longer sampled"
            ));
            Ok(0)
        }
        Err(error) => {
            warn(format_args!("{error:#}"));
            let status = wait_forwarding_signals(&mut child, events.ok())?;
            Ok(if status == 0 { OWN_FAILURE } else { status })
        }
    }
}

/// Starts the watch for the command's end and for signals. Should that fail, signals kill the recorder as they do other
/// programs.
fn watch_child(
    child: &Child,
    signals: watch::BlockedSignals,
    session: &Session,
) -> anyhow::Result<Receiver<WatchEvent>> {
    let begun = || {
        let pidfd = spawn::pidfd(child.id())
            .map_err(|error| anyhow::anyhow!(shortage::explain(&error)))
            .context("cannot watch the command (pidfd_open, Linux 5.3)")?;
        watch::start(signals, Some(pidfd), session.doorbell()).context("cannot start a thread")
    };
    begun().inspect_err(|_| watch::unblock_signals())
}

/// Waits for the command after its recording has failed, and forwards signals to it.
fn wait_forwarding_signals(child: &mut Child, events: Option<Receiver<WatchEvent>>) -> io::Result<u8> {
    let pid = Pid::from_raw(child.id() as i32);
    while let Some(events) = &events
        && child.try_wait()?.is_none()
    {
        match events.recv() {
            Ok(WatchEvent::Signal { signal, sent: true }) => drop(kill(pid, signal)),
            Ok(WatchEvent::Signal { .. } | WatchEvent::IntervalPassed) => {}
            Ok(WatchEvent::ProgramEnded) | Err(_) => break,
        }
    }
    Ok(shell_status(child.wait()?))
}

/// Records a started command to its end. The second value is false if it was still running after `-d` and the SIGTERM.
fn record_child(
    options: &RecordOptions,
    session: &Session,
    tables: Option<Cache>,
    output: Output,
    events: &Receiver<WatchEvent>,
    child: &mut Child,
) -> anyhow::Result<(Recording, bool)> {
    let deadline = options.deadline();
    let mut recording = Recording::begin(output.commit(child.id())?, tables, options, None)?;
    let mut collector = Collector::new(session.directories(), Scope::Everything, options.notices)
        .with_buffer(options.sampling.buffer);
    if options.snapshot {
        collector = collector.into_flight_recorder();
        options
            .notices
            .say(format_args!("flight recorder: `kill -USR2 {}` writes what it holds", std::process::id()));
    }
    search_processes(&mut collector, session, child.id(), &options.sampling, options.snapshot)?;
    let ended = follow_command(options, &mut recording, &mut collector, session, child, events, deadline)
        .and_then(|ended| {
            session.stop();
            collector.release_processes();
            if options.snapshot || collector.any_running() {
                std::thread::sleep(STOP_GRACE);
            }
            collector.finish(&mut recording)?;
            if collector.said_why_missing() {
                recording.missing_processes_are_explained();
            }
            Ok(ended)
        })
        .map_err(|error| cannot_continue(recording.path(), &error))?;
    Ok((recording, ended))
}

/// Drains until the command has ended (true), or is still running after `-d` and the SIGTERM (false).
fn follow_command(
    options: &RecordOptions,
    recording: &mut Recording,
    collector: &mut Collector,
    session: &Session,
    child: &mut Child,
    events: &Receiver<WatchEvent>,
    deadline: Option<Instant>,
) -> io::Result<bool> {
    let pid = Pid::from_raw(child.id() as i32);
    let mut snapshots = Snapshots::new(options, session, recording.path());
    let (mut interrupts, mut cut_short) = (DoublePress::default(), false);
    let mut answer = |event| match event {
        WatchEvent::ProgramEnded => Flow::Finish,
        WatchEvent::IntervalPassed | WatchEvent::Signal { signal: watch::SNAPSHOT, .. } => {
            if !options.snapshot {
                return Flow::Snapshot;
            }
            snapshots.take();
            Flow::Continue
        }
        // The terminal's signals have reached the command too; a signal sent to the recorder alone is forwarded.
        WatchEvent::Signal { signal, sent: true } => {
            let _ = kill(pid, signal);
            Flow::Continue
        }
        WatchEvent::Signal { signal, sent: false } => {
            cut_short = signal == Signal::SIGINT && interrupts.is_again();
            if cut_short { Flow::Finish } else { Flow::Continue }
        }
    };
    let doorbell = session.doorbell();
    let reason = follow(collector, &doorbell, events, deadline, recording, &mut answer)?;
    if reason == Reason::Requested && !cut_short {
        return Ok(true);
    }
    session.stop();
    collector.release_processes();
    let _ = kill(pid, Signal::SIGTERM);
    let mut answer = |event| match event {
        WatchEvent::ProgramEnded => Flow::Finish,
        WatchEvent::IntervalPassed | WatchEvent::Signal { signal: watch::SNAPSHOT, .. } => Flow::Continue,
        WatchEvent::Signal { signal, sent } => {
            let kill_it = signal == Signal::SIGINT && !sent;
            let _ = kill(pid, if kill_it { Signal::SIGKILL } else { signal });
            Flow::Continue
        }
    };
    let deadline = Some(Instant::now() + TERM_TIMEOUT);
    Ok(follow(collector, &doorbell, events, deadline, recording, &mut answer)? == Reason::Requested)
}

/// Distinguishes a single Ctrl-C, which is left to the command, from two in a row.
#[derive(Default)]
struct DoublePress {
    last: Option<Instant>,
}

impl DoublePress {
    /// Notes a press; true if the previous one was just before it.
    fn is_again(&mut self) -> bool {
        self.last.replace(Instant::now()).is_some_and(|last| last.elapsed() < DOUBLE_PRESS)
    }
}

/// CPU time of the command and of the children it waited for, in nanoseconds.
fn command_ns() -> Option<u64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
    let micros = [usage.user_time(), usage.system_time()].map(|t| t.tv_sec() * 1_000_000 + t.tv_usec());
    u64::try_from(micros.iter().sum::<i64>()).ok()?.checked_mul(1000)
}

/// Prints how much CPU time the recorder and the command used.
fn print_cpu_time(notices: Notices) {
    let seconds = |who| {
        let usage = getrusage(who).ok()?;
        let micros = [usage.user_time(), usage.system_time()].map(|t| t.tv_sec() * 1_000_000 + t.tv_usec());
        Some(micros.iter().sum::<i64>() as f64 / 1e6)
    };
    if let (Some(own), Some(command)) = (seconds(UsageWho::RUSAGE_SELF), seconds(UsageWho::RUSAGE_CHILDREN)) {
        notices.detail(format_args!("CPU time: recorder {own:.4} s, command {command:.4} s"));
    }
}
