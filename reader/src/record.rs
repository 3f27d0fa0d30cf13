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
use std::process::{Child, ExitStatus};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::attach::Bell;
use crate::collector::{Collector, Scope};
use crate::destination::{Destination, with_suffix};
use crate::follow::{Flow, Listener, Reason, follow};
use crate::notices::{Notices, warn};
use crate::profile_file::{End, Event, ProfileWriter, SessionInfo};
use crate::program::ProgramError;
use crate::session::Session;
use crate::stats::Tally;
use crate::watch::{self, Happening};
use crate::{agent_file, clock, list, program, spawn};

/// Our own failure, as `env`, `timeout` and others tell it.
pub const OWN_FAILURE: u8 = 125;
/// How long a command may take to end after the SIGTERM of `-d`.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long processes that outlive the command may take to notice the stop flag.
const GRACE: Duration = Duration::from_millis(30);
/// A killed recorder loses no more than this.
const FLUSH_EVERY: Duration = Duration::from_millis(250);
/// Different notes of agents that are shown.
const NOTES_LIMIT: usize = 20;
/// Bytes of the command line kept in the profile.
const COMMAND_LIMIT: usize = 4096;

/// What triggers samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The best that works: `cpu`.
    Auto,
    /// A timer on each thread's CPU clock.
    Cpu,
    /// ITIMER_PROF and SIGPROF, one for the process.
    Itimer,
}

impl Source {
    /// The name in flags, environment and profile.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Itimer => "itimer",
        }
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Auto, Self::Cpu, Self::Itimer]
            .into_iter()
            .find(|source| source.name() == text)
            .ok_or_else(|| format!("`{text}` is not among the sources of this version: auto, cpu, itimer"))
    }
}

/// What to record and how.
#[derive(Debug)]
pub struct RecordOptions {
    /// Samples per second of CPU time.
    pub frequency: u32,
    /// What triggers them.
    pub source: Source,
    /// When to stop.
    pub duration: Option<Duration>,
    /// Where to write.
    pub output: Option<PathBuf>,
    /// The running process; otherwise `command` is run.
    pub pid: Option<u32>,
    /// Frames kept of a stack.
    pub max_stack: u32,
    /// How much to say.
    pub notices: Notices,
    /// The program and its arguments.
    pub command: Vec<OsString>,
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
    let mut child = match spawn::start(&program, &options.command, session.environment(options, &agent)) {
        Ok(child) => child,
        Err(error) => {
            output.abandon();
            session.remove();
            return Err(error.into());
        }
    };
    let recorded = record_child(options, &session, output, &mut child);
    session.bell().stop();
    session.remove();
    let ended = match recorded {
        Ok((recording, ended)) => {
            let status = if ended { Some(shell_status(child.wait()?)) } else { None };
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
    output: Output,
    child: &mut Child,
) -> anyhow::Result<(Recording, bool)> {
    let deadline = options.duration.map(|duration| Instant::now() + duration);
    // After the start: the command has the signal mask that we were given.
    let signals = watch::hold_signals().context("cannot hold signals")?;
    let pidfd = spawn::pidfd(child.id()).context("cannot watch the command (pidfd_open, Linux 5.3)")?;
    let happenings = watch::start(signals, Some(pidfd), session.bell()).context("cannot start a thread")?;
    let mut recording = Recording::begin(output.commit(child.id())?, options)?;
    let directory = session.directory().to_owned();
    let mut collector = Collector::new(vec![directory], Scope::Everything, options.notices);
    let ended = follow_command(&mut recording, &mut collector, session, child, &happenings, deadline)
        .and_then(|ended| {
            session.bell().stop();
            if collector.somebody_left() {
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
    recording: &mut Recording,
    collector: &mut Collector,
    session: &Session,
    child: &mut Child,
    happenings: &Receiver<Happening>,
    deadline: Option<Instant>,
) -> io::Result<bool> {
    let pid = Pid::from_raw(child.id() as i32);
    let mut answer = |happening| match happening {
        Happening::ProgramEnded => Flow::Finish,
        // What the terminal sends has reached the command too; what was sent to us is meant for it.
        Happening::Signal { signal, sent } => {
            if sent {
                let _ = kill(pid, signal);
            }
            Flow::Continue
        }
    };
    let bell = session.bell();
    let mut reason = follow(collector, &bell, happenings, deadline, recording, &mut answer)?;
    if reason == Reason::Deadline {
        bell.stop();
        let _ = kill(pid, Signal::SIGTERM);
        let deadline = Some(Instant::now() + PATIENCE);
        reason = follow(collector, &bell, happenings, deadline, recording, &mut answer)?;
    }
    Ok(reason == Reason::Told)
}

fn record_process(options: &RecordOptions, pid: u32) -> anyhow::Result<u8> {
    let directories = crate::session::directories();
    let mut collector = Collector::new(directories, Scope::Process(pid), options.notices);
    collector.find_process(pid)?;
    let output = Output::prepare(options.output.as_deref())?;
    let signals = watch::hold_signals().context("cannot hold signals")?;
    let bell = Arc::new(Bell::private().context("cannot map a page")?);
    let happenings = watch::start(signals, None, bell.clone()).context("cannot start a thread")?;
    let mut recording = output.commit(pid).and_then(|output| Recording::begin(output, options))?;
    let deadline = options.duration.map(|duration| Instant::now() + duration);
    if deadline.is_none() {
        options
            .notices
            .say(format_args!("recording process {pid}; Ctrl-C ends the recording, not the process"));
    }
    follow(&mut collector, &bell, &happenings, deadline, &mut recording, &mut |_| Flow::Finish)
        .and_then(|_| collector.finish(&mut recording))
        .with_context(|| "the profile could not be written any further")?;
    recording.end(None)?;
    Ok(0)
}

fn shell_status(status: ExitStatus) -> u8 {
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .map_or(OWN_FAILURE, |code| code as u8)
}

/// The profile to be, and the file made of it when another format is asked for.
struct Output {
    profile: Destination,
    export: Option<(crate::output::Format, Destination)>,
}

impl Output {
    fn prepare(path: Option<&Path>) -> anyhow::Result<Self> {
        let format = path.and_then(crate::output::Format::from_path);
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

    fn commit(self, pid: u32) -> anyhow::Result<Committed> {
        let (profile, path) = self.profile.commit(pid)?;
        let export =
            self.export.map(|(format, export)| anyhow::Ok((format, export.commit(pid)?))).transpose()?;
        Ok(Committed { profile, path, export })
    }
}

struct Committed {
    profile: File,
    path: PathBuf,
    export: Option<(crate::output::Format, (File, PathBuf))>,
}

/// A profile being written.
struct Recording {
    writer: ProfileWriter<File>,
    path: PathBuf,
    export: Option<(crate::output::Format, (File, PathBuf))>,
    tally: Tally,
    notices: Notices,
    /// What agents had to say, each text once.
    notes: BTreeSet<String>,
    started_ns: u64,
    flushed: Instant,
}

impl Listener for Recording {
    fn event(&mut self, event: Event) -> io::Result<()> {
        if let Event::Process(info) = &event
            && !info.note.is_empty()
            && self.notes.len() < NOTES_LIMIT
            && self.notes.insert(info.note.clone())
        {
            self.notices.say(format_args!("process {} ({}): {}", info.pid, info.exe.display(), info.note));
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
}

impl Recording {
    fn begin(output: Committed, options: &RecordOptions) -> anyhow::Result<Self> {
        let started_ns = clock::monotonic_ns();
        let system = nix::sys::utsname::uname().context("uname failed")?;
        let mut room = COMMAND_LIMIT;
        let command = options.command.iter().map(|argument| argument.to_string_lossy().into_owned());
        let session = SessionInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            host: system.nodename().to_string_lossy().into_owned(),
            kernel: system.release().to_string_lossy().into_owned(),
            started_realtime_ns: clock::realtime_ns(),
            started_ns,
            command: command
                .take_while(|argument| {
                    let fits = argument.len() < room;
                    room = room.saturating_sub(argument.len() + 1);
                    fits
                })
                .collect(),
            frequency: options.frequency,
            source: options.source.name().into(),
        };
        let mut recording = Self {
            writer: ProfileWriter::new(output.profile)
                .with_context(|| format!("{}: cannot write the profile", output.path.display()))?,
            path: output.path,
            export: output.export,
            tally: Tally::default(),
            notices: options.notices,
            notes: BTreeSet::new(),
            started_ns,
            flushed: Instant::now(),
        };
        recording.event(Event::Session(session))?;
        recording.writer.flush()?;
        Ok(recording)
    }

    /// Ends the profile, makes the other format of it, and says what there is.
    fn end(mut self, status: Option<i32>) -> anyhow::Result<()> {
        let notices = self.notices;
        let ns = clock::monotonic_ns();
        self.event(Event::End(End { ns, wall_ns: ns.saturating_sub(self.started_ns), status }))?;
        let path = self.path.display();
        self.writer.flush().with_context(|| format!("{path}: cannot write the profile"))?;
        let stats = self.tally.finish(self.writer.bytes_written());
        let next = if let Some((format, (mut file, exported))) = self.export {
            crate::output::export(format, &self.path, &mut file).with_context(|| {
                format!("{}: cannot write it; the profile is kept in {path}", exported.display())
            })?;
            let _ = std::fs::remove_file(&self.path);
            exported.display().to_string()
        } else {
            format!("{path}; next: selfwind report {path}")
        };
        notices.say(format_args!("{} -> {next}", stats.summary()));
        if stats.samples == 0 && stats.detail.images == 0 {
            notices.say("no process came up with the agent (is SELFWIND_ENABLE=0 set?); `selfwind record -v` tells more");
        } else if stats.samples == 0 {
            notices.say(
                "the processes used less CPU time than one period of a sample; a higher -F catches more",
            );
        }
        Ok(())
    }
}
