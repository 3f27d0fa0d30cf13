//! What happens outside the rings: signals to the recorder, and the end of the program.
//!
//! A thread waits for both and wakes the recorder, whose one place to sleep is the doorbell.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};

use crate::target::attach::Doorbell;

/// Something the recorder has to know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchEvent {
    /// The recorder got a signal.
    Signal {
        /// Which.
        signal: Signal,
        /// A process sent it to us; otherwise the terminal sent it to us and to the program alike.
        sent: bool,
    },
    /// The program ended; it has not been waited for.
    ProgramEnded,
    /// Another interval has passed.
    IntervalPassed,
}

/// Signals that end or steer a recording instead of killing it.
const SIGNALS: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// What asks for a snapshot; `perf record --switch-output` has the same.
pub(crate) const SNAPSHOT: Signal = Signal::SIGUSR2;

/// Signals that wait to be read.
#[derive(Debug)]
pub(crate) struct BlockedSignals {
    signals: SignalFd,
    /// The mask before, for the command.
    pub(crate) given: SigSet,
    /// How often to tell of the time.
    every: Option<Duration>,
}

impl BlockedSignals {
    /// Beside them, each interval of this length is told of.
    pub(crate) fn and_every(self, every: Option<Duration>) -> Self {
        Self { every, ..self }
    }
}

/// The mask before [`hold_size_signal`].
static GIVEN: OnceLock<SigSet> = OnceLock::new();

/// A file that would get larger than RLIMIT_FSIZE is an error from here on, which has a message, and no end without one.
/// Call it before there is a second thread.
pub(crate) fn hold_size_signal() {
    if let Ok(given) = SigSet::thread_get_mask() {
        GIVEN.get_or_init(|| given);
        let _ = SigSet::from(Signal::SIGXFSZ).thread_block();
    }
}

/// Signals are noted from here on, [`SNAPSHOT`] if `snapshots` are taken. Call it before there is a second thread, and
/// before the command starts: one that came in between would end us.
pub(crate) fn hold_signals(snapshots: bool) -> io::Result<BlockedSignals> {
    let set: SigSet = SIGNALS.into_iter().chain(snapshots.then_some(SNAPSHOT)).collect();
    let given = GIVEN.get().copied().map_or_else(SigSet::thread_get_mask, Ok)?;
    set.thread_block()?;
    let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    Ok(BlockedSignals { signals, given, every: None })
}

/// Signals end us again, as they would without [`hold_signals`].
pub(crate) fn release_signals() {
    let set: SigSet = SIGNALS.into_iter().collect();
    let _ = set.thread_unblock();
}

/// Starts the watch; `program` is the pidfd of the program, when there is one.
pub(crate) fn start(
    BlockedSignals { signals, every, .. }: BlockedSignals,
    program: Option<OwnedFd>,
    doorbell: Arc<Doorbell>,
) -> io::Result<Receiver<WatchEvent>> {
    let (sender, receiver) = channel();
    std::thread::Builder::new().name("selfwind-watch".into()).stack_size(64 << 10).spawn(move || {
        // The receiver is gone when the recording has ended: nobody is left to be told.
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
                // SI_USER and below come from a process, SI_KERNEL (0x80) from the terminal.
                sender.send(WatchEvent::Signal { signal, sent: info.ssi_code <= 0 }).ok()?;
            }
        }
        if let Some((due, every)) = next
            && Instant::now() >= due
        {
            // Intervals that passed while this machine slept are one.
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
