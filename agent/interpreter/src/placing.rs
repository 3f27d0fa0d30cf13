//! Puts interpreted frames among the native ones: each run just inside the native frame that evaluates it, which is the one
//! that holds the run's address; and what a region's unwinder emitted just inside the frame it was asked about, or in its
//! place.

use shm_format::MAX_DEPTH;
use unwind::StackCache;

use super::found::{Found, Run};
use super::regions::Emitted;

/// Runs that may be passed over at a time, because they lie in no native frame.
const LOST: usize = 4;

/// Frames that are put together.
struct Mixed<'a> {
    frames: &'a mut [u64; MAX_DEPTH],
    count: usize,
}

impl Mixed<'_> {
    #[inline]
    fn push(&mut self, frame: u64) {
        if let Some(place) = self.frames.get_mut(self.count) {
            *place = frame;
        }
        self.count += 1;
    }

    #[inline]
    fn extend(&mut self, frames: &[u64]) {
        if let [frame] = frames {
            return self.push(*frame);
        }
        let room = self.frames.get_mut(self.count..).unwrap_or(&mut []);
        room.iter_mut().zip(frames).for_each(|(place, frame)| *place = *frame);
        self.count += frames.len();
    }
}

/// Fills `frames` with both, leaf first; how many there are, which may be more than fit. None if nothing is to be added.
///
/// Runs that lie in no native frame are left out, unless the native walk did not get to its end: then they follow it.
pub(super) fn place(
    found: &Found,
    emitted: Option<&Emitted>,
    native: &StackCache,
    is_complete: bool,
    frames: &mut [u64; MAX_DEPTH],
) -> Option<usize> {
    let mut mixed = Mixed { frames, count: 0 };
    let is_sorted = found.runs().is_sorted_by_key(|run| run.inside);
    let rest = match emitted {
        None if is_sorted => put_in_order(&mut mixed, found, native),
        _ => put_each(&mut mixed, found, emitted, native, is_sorted),
    };
    if !is_complete {
        rest.iter().for_each(|run| mixed.extend(found.of(run)));
    }
    (emitted.is_some() || mixed.count > native.frames().len()).then_some(mixed.count)
}

/// Puts runs in stack order among the native frames, those that follow the last run at once. Returns the runs that are
/// farther out than all native frames.
fn put_in_order<'f>(mixed: &mut Mixed<'_>, found: &'f Found, native: &StackCache) -> &'f [Run] {
    let mut runs = found.runs();
    let mut frames = native.frames();
    let mut pointers = native.stack_pointers();
    let mut low = pointers.next().unwrap_or(0);
    let mut high = pointers.next().unwrap_or(u64::MAX);
    while let Some((run, outer)) = runs.split_first() {
        // Frames whose stack pointer is unknown (0) are passed over.
        while high <= run.inside
            && let [frame, rest @ ..] = frames
            && !rest.is_empty()
        {
            mixed.push(frame.bits());
            frames = rest;
            (low, high) = (high, pointers.next().unwrap_or(u64::MAX));
        }
        if low == 0 && frames.len() <= 1 {
            break;
        }
        if low != 0 && low <= run.inside {
            mixed.extend(found.of(run));
        }
        runs = outer;
    }
    let room = mixed.frames.get_mut(mixed.count..).unwrap_or(&mut []);
    room.iter_mut().zip(frames).for_each(|(place, frame)| *place = frame.bits());
    mixed.count += frames.len();
    runs
}

/// Puts runs in any order, and what region unwinders emitted, among the native frames. Returns the runs that were not put.
#[cold]
fn put_each<'f>(
    mixed: &mut Mixed<'_>,
    found: &'f Found,
    emitted: Option<&Emitted>,
    native: &StackCache,
    is_sorted: bool,
) -> &'f [Run] {
    let mut runs = found.runs();
    let mut pointers = native.stack_pointers();
    let mut next_low = pointers.next().unwrap_or(0);
    let mut of_regions = emitted.map_or(&[][..], Emitted::runs).iter().peekable();
    for (number, frame) in native.frames().iter().enumerate() {
        let low = next_low;
        let high = pointers.next().unwrap_or(u64::MAX);
        next_low = high;
        let is_here = |run: &Run| low != 0 && low <= run.inside && run.inside < high;
        // Those that are passed over lie in no frame.
        while is_sorted
            && let [run, rest @ ..] = runs
            && run.inside < low
        {
            runs = rest;
        }
        while let Some(next) = runs.iter().take(LOST).position(is_here) {
            if let Some(run) = runs.get(next) {
                mixed.extend(found.of(run));
            }
            runs = runs.get(next + 1..).unwrap_or(&[]);
        }
        let own = of_regions.next_if(|run| run.number == number);
        if let (Some(run), Some(emitted)) = (own, emitted) {
            mixed.extend(emitted.of(run));
        }
        if own.is_none_or(|run| !run.replaces) {
            mixed.push(frame.bits());
        }
    }
    runs
}
