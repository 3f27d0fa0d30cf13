//! `top`: shows live where time is spent.
//!
//! The terminal is always restored, whether this ends by a key, a signal, an error or a panic.

mod arguments;
mod draw;
mod feed;
mod flame;
#[cfg(test)]
mod tests;
mod view;
mod window;

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, KeyEventKind};
use shm_format::MAX_DEPTH;

pub(crate) use arguments::TopArgs;

use crate::drain::collector::{Collector, Scope};
use crate::drain::listener::Listener;
use crate::drain::watch::{self, WatchEvent};
use crate::proc;
use crate::record::program;
use crate::record::spawn::{self, Child};
use crate::record::{attach, search_processes, search_started, shell_status};
use crate::sampling::settings::SamplingSettings;
use crate::sampling::sources::Sources;
use crate::tables::builder;
use crate::tables::cache::{self, Cache};
use crate::target::agent_file;
use crate::target::attach::Doorbell;
use crate::target::clock;
use crate::target::inject;
use crate::target::session::{self, Session};
use crate::terminal::notices::Notices;
use crate::terminal::screen::Screen;
use crate::wall::Wall;
use feed::Feed;
use view::{Next, View};

/// How often the screen is redrawn while samples arrive.
const REDRAW: Duration = Duration::from_millis(250);
/// How often to check which blocks are in use.
const BLOCKS_EVERY: Duration = Duration::from_secs(1);
/// The longest sleep.
const POLL_MAX: Duration = Duration::from_millis(100);
/// How long a command may take to end after SIGTERM.
const TERM_TIMEOUT: Duration = Duration::from_secs(3);

/// Shows the live screen until the user quits. Returns the exit status.
///
/// # Errors
/// If there is no terminal or no program to show, or if the program cannot be started.
pub(crate) fn run(args: &TopArgs) -> anyhow::Result<u8> {
    if !io::stdout().is_terminal() {
        anyhow::bail!(
            "top needs a terminal, but standard output is not one; `selfwind tail` prints samples as lines, `selfwind record` writes a profile"
        );
    }
    if args.command.is_empty() { watch_running(args) } else { watch_command(args) }
}

fn watch_running(args: &TopArgs) -> anyhow::Result<u8> {
    // First, because this may create the directory that is searched next.
    let attached = args.pid.filter(|&pid| proc::start_time(pid).is_some());
    if let Some(pid) = attached {
        inject::check_sources(pid, &args.event)?;
    }
    let turn = attached.map(inject::Turn::at);
    let sampled = attached.map(|pid| attach(&sampling(args), pid, Notices::Quiet)).transpose()?;
    let mut event = args.event.clone();
    event.take_over(attached.map_or(Sources::NONE, inject::sources_of));
    // For the processes that an injected process starts.
    let session = sampled.filter(|sampled| sampled.is_attached()).map(|_| Session::create()).transpose();
    let shown = session.map_err(Into::into).and_then(|session| {
        let shown = watch_processes(args, &event, turn, session.as_ref());
        session.into_iter().for_each(Session::remove);
        shown
    });
    if let (Some(pid), Some(inject::Sampling::Begun)) = (attached, sampled) {
        // It may have ended.
        let _ = inject::detach(pid);
    }
    shown.map(|()| 0)
}

fn watch_processes(
    args: &TopArgs,
    event: &Sources,
    turn: Option<inject::Turn>,
    session: Option<&Session>,
) -> anyhow::Result<()> {
    let scope = args.pid.map_or(Scope::Living, Scope::Process);
    // Notices of the collector would disturb the screen.
    let mut collector = Collector::new(session::flight_directories(), scope, Notices::Quiet).keep_regions();
    if let Some(pid) = args.pid {
        collector.find_process(pid)?;
    }
    drop(turn);
    let doorbell = match session {
        Some(session) => session.doorbell(),
        None => Arc::new(Doorbell::private().context("cannot map a page")?),
    };
    let signals = watch::block_signals(false).context("cannot block signals")?;
    let events = watch::start(signals, None, doorbell.clone()).context("cannot start a thread")?;
    let subject =
        args.pid.map_or_else(|| "all processes with the agent".into(), |pid| format!("process {pid}"));
    if let (Some(session), Some(pid)) = (session, args.pid) {
        search_started(&mut collector, session, pid, &sampling(args))?;
    }
    Top::new(args, event, subject)?.run(&mut collector, &doorbell, &events, None)?;
    session.into_iter().for_each(Session::stop);
    collector.release_processes();
    Ok(())
}

/// The sampling settings for the command or an attached process.
fn sampling(args: &TopArgs) -> SamplingSettings {
    SamplingSettings {
        frequency: args.freq,
        sources: args.event.clone(),
        max_stack: MAX_DEPTH as u32,
        ..SamplingSettings::default()
    }
}

fn watch_command(args: &TopArgs) -> anyhow::Result<u8> {
    args.event.check()?;
    let program = program::find(&args.command[0], std::env::var_os("PATH").as_deref())?;
    program.check(&args.event)?;
    let mut sampling = sampling(args);
    sampling.sources.resolve_sites(&program.path)?;
    let log = match &args.log {
        None => OpenOptions::new().write(true).open("/dev/null"),
        Some(path) => File::create(path),
    };
    let log = log.with_context(|| match &args.log {
        None => "/dev/null: cannot open it".into(),
        Some(path) => format!("{}: cannot write the output; choose another file with --log", path.display()),
    })?;
    let agent = agent_file::unpack_for(&args.event)?;
    let session = Session::create()?;
    if sampling.sources.have_wall() {
        session.ask_for_changes();
    }
    let mut environment = session.environment(&sampling, false, &agent);
    let tables = Cache::of_user(Notices::Quiet);
    if let Some(cache) = &tables {
        builder::before_start(cache, &program.path, Notices::Quiet);
    }
    environment.extend(tables.iter().map(|cache| (cache::VARIABLE.into(), cache.directory().into())));
    let signals = watch::block_signals(false).context("cannot block signals")?;
    let mut child =
        match spawn::start(&program, &args.command, &environment, &signals.original_mask, Some(&log)) {
            Ok(child) => child,
            Err(error) => {
                session.remove();
                return Err(error.into());
            }
        };
    let shown = show_command(args, &session, &sampling, signals, &mut child);
    session.stop();
    let ended = end(&mut child);
    session.remove();
    // If the command had to be terminated, its exit status is not passed on.
    shown.map(|status| if ended { status.unwrap_or(0) } else { 0 })
}

/// Shows the command. Returns its exit status if it ended by itself.
fn show_command(
    args: &TopArgs,
    session: &Session,
    sampling: &SamplingSettings,
    signals: watch::BlockedSignals,
    child: &mut Child,
) -> anyhow::Result<Option<u8>> {
    let doorbell = session.doorbell();
    doorbell.tell_unsampled_exec(child.id());
    let pidfd = spawn::pidfd(child.id()).context("cannot watch the command (pidfd_open, Linux 5.3)")?;
    let events = watch::start(signals, Some(pidfd), doorbell.clone()).context("cannot start a thread")?;
    let mut collector = Collector::new(session.directories(), Scope::Everything, Notices::Quiet);
    search_processes(&mut collector, session, child.id(), sampling, false)?;
    let command: Vec<_> = args.command.iter().map(|argument| argument.to_string_lossy()).collect();
    let mut top = Top::new(args, &args.event, command.join(" "))?;
    top.run(&mut collector, &doorbell, &events, Some(child))?;
    collector.release_processes();
    Ok(top.status)
}

/// Terminates the command if it is still running. False if it does not end.
fn end(child: &mut Child) -> bool {
    let deadline = Instant::now() + TERM_TIMEOUT;
    let mut told = false;
    while let Ok(None) = child.try_wait() {
        if !std::mem::replace(&mut told, true) {
            let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
        }
        if Instant::now() > deadline {
            crate::terminal::notices::warn(format_args!(
                "process {} has not ended after SIGTERM; it keeps running, no longer sampled",
                child.id()
            ));
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// The screen and its data.
struct Top {
    feed: Feed,
    view: View,
    subject: String,
    window: u64,
    colour: bool,
    /// Exit status of the command, once it has ended.
    status: Option<u8>,
}

/// User input.
enum Input {
    Key(event::KeyEvent),
    Resize,
}

/// Restores the terminal.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

impl Top {
    fn new(args: &TopArgs, event: &Sources, subject: String) -> anyhow::Result<Self> {
        let frequency = event.frequency(args.freq);
        let since_ns = if args.command.is_empty() { clock::monotonic_ns() } else { 0 };
        let wall = event.have_wall().then(|| Wall::start(frequency, since_ns)).transpose();
        let wall = wall.context("cannot start a thread")?;
        Ok(Self {
            feed: Feed::new(args.window, event.name(), frequency, wall),
            view: View::new(),
            subject,
            window: args.window,
            colour: Screen::of_stdout().colour,
            status: None,
        })
    }

    fn run(
        &mut self,
        collector: &mut Collector,
        doorbell: &Arc<Doorbell>,
        events: &Receiver<WatchEvent>,
        mut child: Option<&mut Child>,
    ) -> anyhow::Result<()> {
        let mut terminal = ratatui::try_init().context("cannot set up the terminal")?;
        let _restore = Restore;
        let inputs = listen(doorbell.clone()).context("cannot start a thread")?;
        let mut drawn: Option<Instant> = None;
        let mut blocks_checked = Instant::now();
        let mut known = doorbell.changes();
        loop {
            let changes = doorbell.changes();
            if std::mem::replace(&mut known, changes) != changes {
                collector.expect_regions();
            }
            collector.pass(&mut self.feed)?;
            self.feed.end_pass()?;
            // The last state stays.
            if self.feed.has_blocks() && blocks_checked.elapsed() >= BLOCKS_EVERY && !self.feed.is_alone() {
                blocks_checked = Instant::now();
                let so_far = collector.drain_for_snapshot(&mut self.feed)?;
                self.feed.end_pass()?;
                self.feed.retain_blocks(&so_far);
            }
            self.set_events();
            let sleep = doorbell.prepare_sleep(changes);
            let mut stirred = false;
            for input in inputs.try_iter() {
                stirred = true;
                if let Input::Key(key) = input
                    && self.view.key(key, &self.feed.window) == Next::Quit
                {
                    return Ok(());
                }
            }
            for event in events.try_iter() {
                stirred = true;
                match event {
                    WatchEvent::Signal { .. } => return Ok(()),
                    WatchEvent::IntervalPassed => {}
                    WatchEvent::ProgramEnded => {
                        self.status = child.as_mut().and_then(|child| child.wait().ok()).map(shell_status);
                    }
                }
            }
            if stirred || drawn.is_none_or(|at| at.elapsed() >= REDRAW) {
                drawn = Some(Instant::now());
                self.draw(&mut terminal, collector.has_ended())?;
            }
            if !stirred {
                sleep.sleep(POLL_MAX);
            }
        }
    }

    /// Tells the view which events there are, once that is known.
    fn set_events(&mut self) {
        if self.view.measures.is_empty()
            && let Some((measures, first)) = self.feed.measures()
        {
            (self.view.measures, self.view.event) = (measures.to_vec(), first as u8);
        }
    }

    fn draw(&mut self, terminal: &mut DefaultTerminal, has_ended: bool) -> io::Result<()> {
        let ended = match self.status {
            Some(status) => Some(format!("ENDED, status {status}")),
            None if has_ended && self.feed.is_alone() => Some("ENDED".into()),
            None => None,
        };
        // The last state stays on the screen.
        if ended.is_none() {
            self.feed.forget();
        } else {
            self.feed.end();
        }
        let passing = self.window > 0 && ended.is_none();
        if self.view.frozen.is_none() && (self.feed.take_changed() || passing) {
            self.view.refresh(&self.feed.window);
        }
        let facts = draw::Facts {
            subject: self.subject.clone(),
            window: self.window,
            colour: self.colour,
            ended,
            ..self.feed.facts()
        };
        terminal.draw(|frame| draw::draw(frame, &self.view, &self.feed.window, &facts))?;
        Ok(())
    }
}

/// Reads keys on a separate thread, which rings the doorbell.
fn listen(doorbell: Arc<Doorbell>) -> io::Result<Receiver<Input>> {
    let (sender, receiver) = channel();
    std::thread::Builder::new().name("selfwind-keys".into()).spawn(move || {
        // An error means that the terminal is gone; the main thread then gets a signal.
        while let Ok(event) = event::read() {
            let input = match event {
                event::Event::Key(key) if key.kind == KeyEventKind::Press => Input::Key(key),
                event::Event::Resize(..) => Input::Resize,
                _ => continue,
            };
            if sender.send(input).is_err() {
                return;
            }
            doorbell.ring();
        }
    })?;
    Ok(receiver)
}
