//! The main loop of every live command: drain, handle events, sleep until a pool fills up or time is up.
//!
//! While writers are short of chunks it only sleeps for a moment, without asking to be woken: the free chunks last longer
//! than that.

use std::io;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use crate::drain::collector::Collector;
use crate::drain::listener::Listener;
use crate::drain::watch::WatchEvent;
use crate::target::attach::Doorbell;

/// Maximum time between two passes: a lost wake-up, a new process or a renamed thread is noticed by then. A pass takes about
/// a tenth of a millisecond.
const POLL_MAX: Duration = Duration::from_millis(250);
/// The first such time, which doubles with each pass: a new process is examined while it runs, not only after a short one has
/// ended.
const POLL_FIRST: Duration = Duration::from_millis(2);
/// Sleep while writers are short of chunks. A chunk is free again after two to four of these.
const SHORT_SLEEP: Duration = Duration::from_millis(2);

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Go on.
    Continue,
    /// Have the listener save a snapshot.
    Snapshot,
    /// End the loop.
    Finish,
}

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The handler of an event asked for it.
    Requested,
    /// The deadline has passed.
    Deadline,
    /// The processes to follow have ended.
    ProcessesEnded,
}

/// Drains until `handle` returns [`Flow::Finish`], the deadline passes or the processes have ended.
///
/// # Errors
/// Those of the listener, at once.
pub(crate) fn follow(
    collector: &mut Collector,
    doorbell: &Doorbell,
    events: &Receiver<WatchEvent>,
    deadline: Option<Instant>,
    listener: &mut dyn Listener,
    handle: &mut dyn FnMut(WatchEvent) -> Flow,
) -> io::Result<Reason> {
    let search = collector.search_threads()?;
    let mut known = doorbell.changes();
    let mut poll = POLL_FIRST;
    loop {
        let changes = doorbell.changes();
        if std::mem::replace(&mut known, changes) != changes {
            collector.expect_regions();
        }
        collector.pass(listener)?;
        collector.report_blocking(&search, listener)?;
        listener.end_pass()?;
        collector.tell_tables(listener.tables_made());
        if collector.has_ended() {
            return Ok(Reason::ProcessesEnded);
        }
        let sleep = if collector.is_urgent() { None } else { Some(doorbell.prepare_sleep(changes)) };
        let mut idle = true;
        let mut snapshot = false;
        for event in events.try_iter() {
            idle = false;
            match handle(event) {
                Flow::Finish => return Ok(Reason::Requested),
                Flow::Snapshot => snapshot = true,
                Flow::Continue => {}
            }
        }
        if snapshot {
            let ends = collector.drain_for_snapshot(listener)?;
            listener.end_pass()?;
            listener.snapshot(ends)?;
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(Reason::Deadline);
        }
        let capped = |interval: Duration| left.map_or(interval, |left| left.min(interval));
        match sleep {
            _ if !idle => {}
            None => std::thread::sleep(capped(SHORT_SLEEP)),
            // A chunk completed before `prepare_sleep` did not ring the doorbell.
            Some(_) if collector.has_complete() => {}
            Some(sleep) => {
                sleep.sleep(capped(collector.poll_interval().min(poll)));
                poll = (poll * 2).min(POLL_MAX);
            }
        }
    }
}
