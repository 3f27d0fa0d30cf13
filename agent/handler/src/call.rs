//! The stack of a call that the program has made, from ordinary context: of an allocation, of a wait for a lock.
//!
//! The program has called a function that this library stands in front of, so no signal has saved its registers: the
//! entry has, of those that a call preserves. All else is as in the signal handler, whose rules hold here too
//! (`ordinary_walk`): a thread may be in the middle of the loader's lock when it allocates, and a signal handler may
//! allocate or post a semaphore.

use shm_format::{Committed, Loss, Skip, StackHead};
use unwind::End;

use crate::caller::Caller;
use crate::clock;
use crate::ordinary_walk::own_slot;
use crate::outcome::{self, Missed};
use crate::recording::Recording;
use crate::recurring;
use crate::sample::tell;
use crate::slot::Slot;

/// What a call is recorded as.
#[derive(Clone, Copy, Debug)]
pub struct Note {
    /// The number of the source in records.
    pub source: u8,
    /// What the source says of the call.
    pub nonce: u64,
    /// The called function is a frame of the stack, too.
    pub with_callee: bool,
}

/// Records the stack of a call. The number of the calling thread; none if there is no record.
pub fn record(recording: &Recording, caller: &Caller, note: Note) -> Option<u32> {
    count(recording, around(recording, caller, |slot| walk(recording, slot, caller, note)))
}

/// Records the stack of an allocation, which `nonce` tells of.
pub fn record_allocation(recording: &Recording, caller: &Caller, nonce: u64) -> Option<u32> {
    let write = |slot: &'static Slot| {
        let written = recurring::write(recording, slot, caller, nonce);
        (written.committed, written.end)
    };
    count(recording, around(recording, caller, write))
}

/// Counts what became of a call: of those that were recorded the region is told later, many at a time.
#[inline(always)]
fn count(recording: &Recording, recorded: Result<&'static Slot, Missed>) -> Option<u32> {
    let control = recording.region.control();
    match recorded {
        Ok(slot) => {
            slot.count_event(control);
            Some(slot.sequence())
        }
        Err(missed) => {
            control.fire(1);
            outcome::count(control, &Err(missed), 1);
            None
        }
    }
}

/// Has `write` record the stack of a call, inside the slot's nesting guard. One call of many is timed.
#[inline(always)]
fn around(
    recording: &Recording,
    caller: &Caller,
    write: impl FnOnce(&'static Slot) -> (Result<Committed, Loss>, End),
) -> Result<&'static Slot, Missed> {
    if recording.is_over() {
        return Err(Missed::Skipped(Skip::Stopped));
    }
    let slot = own_slot(caller.stack_pointer).ok_or(Missed::Skipped(Skip::DisabledThread))?;
    let _entered = slot.enter(caller.stack_pointer).ok_or(Missed::Skipped(Skip::Nested))?;
    if !recording.is_current() {
        return Err(Missed::Skipped(Skip::Stopped));
    }
    if !slot.prepare() {
        return Err(Missed::Lost(Loss::NoSlot));
    }
    let began = slot.is_timed().then(clock::now);
    let (committed, end) = write(slot);
    let control = recording.region.control();
    if let Some(began) = began {
        control.handler_time(clock::now().wrapping_sub(began));
    }
    tell(recording, committed)?;
    if !end.is_complete() {
        control.truncate();
    }
    Ok(slot)
}

#[inline(never)]
fn walk(recording: &Recording, slot: &Slot, caller: &Caller, note: Note) -> (Result<Committed, Loss>, End) {
    // SAFETY: `around` holds the guard and has prepared the slot, so nothing else uses the workspace.
    let mut bench = unsafe { slot.bench() };
    let (walk, chain, frames) = caller.walk(recording, slot, &mut bench);
    // The innermost frame is the called function.
    let frames = frames.get(usize::from(!note.with_callee)..).unwrap_or(&[]);
    let head = StackHead { weight: 1, end: walk.end as u8, source: note.source, nonce: note.nonce };
    (chain.write(&slot.cursor, &recording.region, head, frames, clock::now), walk.end)
}
