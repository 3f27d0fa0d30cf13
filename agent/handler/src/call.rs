//! Records the stack of a call to an interposed function: an allocation, a wait for a lock.
//!
//! No signal has saved the registers; the interposing function has saved those that a call preserves. Otherwise the rules
//! of the signal handler apply (`ordinary_walk`): a thread may hold the loader's lock when it allocates, and a signal
//! handler may allocate or post a semaphore. The interposing function must have [permitted](crate::AnyAlignment) unaligned accesses.

use shm_format::{AllocationNonce, BlockId, Committed, Loss, Skip};
use unwind::End;

use crate::caller::Caller;
pub use crate::caller::Note;
use crate::clock;
use crate::ordinary_walk::own_slot;
use crate::outcome::{self, Missed};
use crate::recording::Recording;
use crate::recurring;
pub use crate::recurring::STACK_LOG;
use crate::sample::tell;
use crate::slot::Slot;

/// Records the stack of a call. Returns the number of the calling thread, or `None` if nothing was recorded.
pub fn record(recording: &Recording, caller: &Caller, note: Note) -> Option<u32> {
    count(recording, around(recording, caller, |slot| caller.write(recording, slot, note)), note.weight)
}

/// Records the stack of an allocation; all are recorded. Returns the id of its block, which others of the same stack and
/// size may share.
pub fn record_allocation(
    recording: &Recording,
    caller: &Caller,
    allocation: AllocationNonce,
) -> Option<BlockId> {
    let mut id = BlockId(0);
    let write = |slot: &'static Slot| {
        let written = recurring::write(recording, slot, caller, allocation);
        id = written.id;
        (written.committed, written.end)
    };
    count(recording, around(recording, caller, write), 1)?;
    Some(id)
}

/// Counts the outcome of a call with this weight. Recorded calls are mostly added to the region's counters in batches.
#[inline(always)]
fn count(recording: &Recording, recorded: Result<&'static Slot, Missed>, weight: u32) -> Option<u32> {
    let control = recording.region.control();
    match recorded {
        Ok(slot) => {
            if weight == 1 {
                slot.count_event(control);
            } else {
                control.fire(weight.into());
                outcome::count(control, &Ok(()), weight);
            }
            Some(slot.sequence())
        }
        Err(missed) => {
            control.fire(1);
            outcome::count(control, &Err(missed), 1);
            None
        }
    }
}

/// Calls `write` inside the slot's nesting guard to record the stack of a call. Only one call in many is timed.
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
