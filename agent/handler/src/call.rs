//! Records the stack of a call to an interposed function: an allocation, a wait for a lock.
//!
//! No signal has saved the registers; the interposing function has saved those that a call preserves. Otherwise the rules
//! of the signal handler apply (`ordinary_walk`): a thread may hold the loader's lock when it allocates, and a signal
//! handler may allocate or post a semaphore. The interposing function must have [permitted](platform::arch::AnyAlignment)
//! unaligned accesses.

use platform::clock;
use shm_format::{AllocationNonce, BlockId, Committed, Loss, Skip};
use unwind::End;

use crate::caller::Caller;
pub use crate::caller::Note;
use crate::nesting::Entered;
use crate::ordinary_walk::{own_slot, own_slot_at_once};
use crate::outcome::{self, Missed};
use crate::recording::Recording;
use crate::recurring::{self, Written};
use crate::sample::tell;
use crate::slot::Slot;

/// Records the stack of a call. Returns the number of the calling thread, or `None` if nothing was recorded.
pub fn record(recording: &Recording, caller: &Caller, note: Note) -> Option<u32> {
    let recorded = Begun::new(recording, caller, own_slot).and_then(|begun| {
        let (committed, end) = caller.write(recording, begun.slot, note);
        begun.finish(recording, committed, end)
    });
    count(recording, recorded, note.weight)
}

/// Records the stack of an allocation; all are recorded. Returns the id of its block, which others of the same stack and
/// size may share. The thread must have used its thread-local storage.
#[inline(never)]
pub fn record_allocation(
    recording: &Recording,
    caller: &Caller,
    allocation: AllocationNonce,
) -> Option<BlockId> {
    match Begun::new(recording, caller, own_slot_at_once) {
        Ok(begun) => match recurring::write(recording, begun.slot, caller, allocation) {
            Written::Counted(id) => {
                begun.count(recording);
                Some(id)
            }
            Written::Recorded { committed, end, id } => {
                count(recording, begun.finish(recording, committed, end), 1).map(|_| id)
            }
        },
        Err(missed) => {
            count(recording, Err(missed), 1);
            None
        }
    }
}

/// Counts the outcome of a call with this weight. Recorded calls are mostly added to the region's counters in batches.
#[inline(never)]
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

/// A call that is being recorded, inside the slot's nesting guard.
struct Begun {
    slot: &'static Slot,
    _entered: Entered<'static>,
    /// When it began. Only one call in many is timed.
    began: Option<u64>,
}

impl Begun {
    #[inline(always)]
    fn new(
        recording: &Recording,
        caller: &Caller,
        own_slot: impl FnOnce(u64) -> Option<&'static Slot>,
    ) -> Result<Self, Missed> {
        if recording.is_over() {
            return Err(Missed::Skipped(Skip::Stopped));
        }
        let slot = own_slot(caller.stack_pointer).ok_or(Missed::Skipped(Skip::DisabledThread))?;
        let entered = slot.enter(caller.stack_pointer).ok_or(Missed::Skipped(Skip::Nested))?;
        if !recording.is_current() {
            return Err(Missed::Skipped(Skip::Stopped));
        }
        if !slot.prepare() {
            return Err(Missed::Lost(Loss::NoSlot));
        }
        Ok(Self { slot, _entered: entered, began: slot.is_timed().then(clock::now) })
    }

    /// Ends a call whose stack was counted.
    #[inline(always)]
    fn count(self, recording: &Recording) {
        self.time(recording);
        self.slot.count_event(recording.region.control());
    }

    /// Ends a call whose stack was written.
    fn finish(
        self,
        recording: &Recording,
        committed: Result<Committed, Loss>,
        end: End,
    ) -> Result<&'static Slot, Missed> {
        self.time(recording);
        tell(recording, committed)?;
        if !end.is_complete() {
            recording.region.control().truncate();
        }
        Ok(self.slot)
    }

    #[inline(always)]
    fn time(&self, recording: &Recording) {
        if let Some(began) = self.began {
            recording.region.control().handler_time(clock::now().wrapping_sub(began));
        }
    }
}
