//! The loop of every live command: drain, look what happened, sleep until a ring fills or time is up.
//!
//! While rings wait for what was taken of them it only naps, and has nobody wake it: a nap is shorter than what is left
//! of a ring lasts.

use std::io;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use crate::drain::collector::Collector;
use crate::drain::listener::Listener;
use crate::drain::watch::WatchEvent;
use crate::target::attach::Doorbell;

/// A lost wake, a new process, a thread's new name: noticed after this time at the latest. Each turn costs the machine
/// about a tenth of a millisecond.
const TURN: Duration = Duration::from_millis(250);
/// A nap: chunks that were taken go back to their writers after two or four.
const NAP: Duration = Duration::from_millis(2);

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Go on.
    Continue,
    /// Have the listener keep what there is so far.
    Snapshot,
    /// That was all.
    Finish,
}

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The handler of an event ended it.
    Told,
    /// The deadline has passed.
    Deadline,
    /// The processes that were to be followed are gone.
    NobodyLeft,
}

/// Drains until told to finish. Ends early with the error of the listener.
pub(crate) fn follow(
    collector: &mut Collector,
    doorbell: &Doorbell,
    events: &Receiver<WatchEvent>,
    deadline: Option<Instant>,
    listener: &mut dyn Listener,
    answer: &mut dyn FnMut(WatchEvent) -> Flow,
) -> io::Result<Reason> {
    let search = collector.search_threads()?;
    loop {
        collector.pass(listener)?;
        collector.tell_blocking(&search, listener)?;
        listener.pause()?;
        if collector.nobody_left() {
            return Ok(Reason::NobodyLeft);
        }
        let sleep = if collector.is_urgent() { None } else { Some(doorbell.prepare_sleep()) };
        let mut idle = true;
        let mut snapshot = false;
        for event in events.try_iter() {
            idle = false;
            match answer(event) {
                Flow::Finish => return Ok(Reason::Told),
                Flow::Snapshot => snapshot = true,
                Flow::Continue => {}
            }
        }
        if snapshot {
            let ends = collector.so_far(listener)?;
            listener.pause()?;
            listener.snapshot(ends)?;
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(Reason::Deadline);
        }
        let at_most = |turn: Duration| left.map_or(turn, |left| left.min(turn));
        match sleep {
            _ if !idle => {}
            None => std::thread::sleep(at_most(NAP)),
            // What came before the announcement has rung in vain.
            Some(_) if collector.has_complete() => {}
            Some(sleep) => sleep.sleep(at_most(collector.turn().min(TURN))),
        }
    }
}
