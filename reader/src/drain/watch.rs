//! Watches for signals to the recorder, the end of the program and the passing of intervals.
//!
//! A thread waits for all of them and rings the doorbell, which is where the recorder sleeps.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};

use crate::target::attach::Doorbell;

/// An event that the recorder has to handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchEvent {
    /// The recorder received a signal.
    Signal {
        /// Which one.
        signal: Signal,
        /// A process sent it to the recorder. Otherwise the terminal sent it to the recorder and the program alike.
        sent: bool,
    },
    /// The program ended; it has not been reaped yet.
    ProgramEnded,
    /// Another interval has passed.
    IntervalPassed,
}

/// Signals that end or control a recording instead of killing the recorder.
const SIGNALS: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Requests a snapshot, as with `perf record --switch-output`.
pub(crate) const SNAPSHOT: Signal = Signal::SIGUSR2;

/// Blocked signals, read through a signalfd.
#[derive(Debug)]
pub(crate) struct BlockedSignals {
    signals: SignalFd,
    /// The original mask, for the command.
    pub(crate) original_mask: SigSet,
    /// How often to report that an interval has passed.
    every: Option<Duration>,
}

impl BlockedSignals {
    /// Also reports each interval of this length.
    pub(crate) fn with_interval(self, every: Option<Duration>) -> Self {
        Self { every, ..self }
    }
}

/// The signal mask before [`block_size_signal`].
static ORIGINAL_MASK: OnceLock<SigSet> = OnceLock::new();

/// Blocks SIGXFSZ: writing beyond RLIMIT_FSIZE then fails with an error that can be reported, instead of killing the
/// recorder. Must be called before a second thread is started.
pub(crate) fn block_size_signal() {
    if let Ok(original_mask) = SigSet::thread_get_mask() {
        ORIGINAL_MASK.get_or_init(|| original_mask);
        let _ = SigSet::from(Signal::SIGXFSZ).thread_block();
    }
}

/// Blocks the recorder's signals, and [`SNAPSHOT`] if `snapshots` are taken. Must be called before a second thread and before
/// the command is started: a signal in between would kill the recorder.
pub(crate) fn block_signals(snapshots: bool) -> io::Result<BlockedSignals> {
    let set: SigSet = SIGNALS.into_iter().chain(snapshots.then_some(SNAPSHOT)).collect();
    let original_mask = ORIGINAL_MASK.get().copied().map_or_else(SigSet::thread_get_mask, Ok)?;
    set.thread_block()?;
    let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    Ok(BlockedSignals { signals, original_mask, every: None })
}

/// Undoes [`block_signals`]: signals kill the recorder again.
pub(crate) fn unblock_signals() {
    let set: SigSet = SIGNALS.into_iter().collect();
    let _ = set.thread_unblock();
}

/// Starts the thread. `program` is the pidfd of the program, if there is one.
pub(crate) fn start(
    BlockedSignals { signals, every, .. }: BlockedSignals,
    program: Option<OwnedFd>,
    doorbell: Arc<Doorbell>,
) -> io::Result<Receiver<WatchEvent>> {
    let (sender, receiver) = channel();
    std::thread::Builder::new().name("selfwind-watch".into()).stack_size(64 << 10).spawn(move || {
        // Sending fails once the recording has ended, which ends this thread.
        let _ = watch(&signals, program, every, &sender, &doorbell);
    })?;
    Ok(receiver)
}

fn watch(
    signals: &SignalFd,
    mut program: Option<OwnedFd>,
    every: Option<Duration>,
    sender: &Sender<WatchEvent>,
    doorbell: &Doorbell,
) -> Option<()> {
    let mut next = every.map(|every| (Instant::now() + every, every));
    loop {
        let mut fds = vec![PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        fds.extend(program.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let left = next.map(|(next, _)| next.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| left.try_into().ok());
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
        let ended = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        while let Ok(Some(info)) = signals.read_signal() {
            if let Ok(signal) = Signal::try_from(info.ssi_signo as i32) {
                // `si_code` is SI_USER or below if a process sent it, SI_KERNEL (0x80) if the terminal did.
                sender.send(WatchEvent::Signal { signal, sent: info.ssi_code <= 0 }).ok()?;
            }
        }
        if let Some((due, every)) = next
            && Instant::now() >= due
        {
            // Intervals that passed while the machine was suspended count as one.
            next = Some(((due + every).max(Instant::now()), every));
            sender.send(WatchEvent::IntervalPassed).ok()?;
        }
        if ended {
            program = None;
            sender.send(WatchEvent::ProgramEnded).ok()?;
        }
        doorbell.ring();
    }
}
