//! Records one event of a tracepoint in the program: its fields, and the stack of its caller.
//!
//! The program may call from anywhere: in a signal handler, even one that interrupted another event of the same thread.
//! Without a stack, an event needs only the thread's position in the pool, where records nest, so it has no guard. With
//! a stack it uses the thread's workspace for samples; an event nested in such an event borrows a second workspace and
//! writes a standalone stack, and one nested in that has no stack.
//!
//! An event takes a few nanoseconds, and shared counters would be contended: so a thread counts its own events and adds
//! them to the region's counters in batches. Events that are not recorded are counted at once.

use platform::clock;
use shm_format::{Committed, FieldTypes, Fields, Loss, Skip, StackHead};
use unwind::Walk;

use crate::caller::Caller;
use crate::ordinary_walk::own_slot;
use crate::outcome::{self, Missed, Outcome};
use crate::recording::{Probe, Recording};
use crate::sample;
use crate::slot::{BorrowedBench, Slot, Workbench};

/// An event with its values.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// `types | id`.
    number: u64,
    values: *const u64,
}

impl Event {
    /// An event of the tracepoint with this number and these types: [`FieldTypes::bits`] with the id below. `values`
    /// has one word per field, for strings their address or 0.
    ///
    /// # Safety
    /// The values, and their strings as [`Fields::measure`] requires, must be valid while the event is recorded.
    #[inline]
    pub unsafe fn new(number: u64, values: *const u64) -> Self {
        Self { number, values }
    }

    /// Records the event without a stack.
    #[inline(always)]
    pub fn record(self, recording: &Recording) {
        let marker = 0u8;
        let slot = begin(recording, &raw const marker as u64);
        if let Err(missed) = slot.and_then(|slot| self.write(recording, slot)) {
            count_missed(recording, missed);
        }
    }

    /// Records the event with the stack of `caller`. Unaligned accesses must be [permitted](platform::arch::AnyAlignment).
    #[inline(never)]
    pub fn record_with_stack(self, recording: &Recording, caller: &Caller) {
        let slot = begin(recording, caller.stack_pointer);
        if let Err(missed) = slot.and_then(|slot| self.write_with_stack(recording, slot, caller)) {
            count_missed(recording, missed);
        }
    }

    #[inline(always)]
    fn fields(&self, has_stack: bool) -> Fields<'_> {
        let types = FieldTypes::from_bits(self.number);
        // SAFETY: the caller of `new` promised valid values and strings.
        unsafe {
            let values = core::slice::from_raw_parts(self.values, types.count());
            Fields::measure(self.number as u32, types, values, has_stack)
        }
    }

    #[inline(always)]
    fn write(&self, recording: &Recording, slot: &Slot) -> Outcome {
        let (types, region) = (FieldTypes::from_bits(self.number), &recording.region);
        let committed = if types.has_strings() {
            self.write_strings(recording, slot)
        } else {
            // SAFETY: the caller of `new` promised one word per field.
            let values = unsafe { core::slice::from_raw_parts(self.values, types.count()) };
            slot.cursor.write_numbers(region, self.number, values, clock::now)
        };
        if committed != Ok(Committed { wake: false }) {
            sample::tell_cold(recording, committed)?;
        }
        slot.count_event(recording.region.control());
        Ok(())
    }

    #[inline(never)]
    fn write_strings(&self, recording: &Recording, slot: &Slot) -> Result<Committed, Loss> {
        slot.cursor.write_fields(&recording.region, &self.fields(false), clock::now)
    }

    fn write_with_stack(&self, recording: &Recording, slot: &Slot, caller: &Caller) -> Outcome {
        if let Some(_entered) = slot.enter(caller.stack_pointer) {
            if !recording.is_current() {
                return Err(Missed::Skipped(Skip::Stopped));
            }
            if !slot.prepare() {
                return Err(Missed::Lost(Loss::NoSlot));
            }
            // SAFETY: inside the guard, prepared, and the only user of the workspace.
            let bench = unsafe { slot.bench() };
            return self.write_walk(recording, slot, caller, bench, false);
        }
        match BorrowedBench::take(slot) {
            Some(mut borrowed) => self.write_walk(recording, slot, caller, borrowed.bench(), true),
            None => self.write_without_stack(recording, slot),
        }
    }

    #[cold]
    #[inline(never)]
    fn write_without_stack(&self, recording: &Recording, slot: &Slot) -> Outcome {
        recording.region.control().truncate();
        self.write(recording, slot)
    }

    #[inline(never)]
    fn write_walk(
        &self,
        recording: &Recording,
        slot: &Slot,
        caller: &Caller,
        mut bench: Workbench<'_>,
        aside: bool,
    ) -> Outcome {
        let fields = self.fields(true);
        let (Walk { end, .. }, chain, frames) = caller.walk(recording, slot, &mut bench);
        let head = StackHead { weight: 1, end: end as u8, source: Probe::Tracepoints.number(), nonce: 0 };
        // The innermost frame is the agent's entry.
        let stack = (head, frames.get(1..).unwrap_or(&[]));
        let region = &recording.region;
        let committed = chain.write_event(&slot.cursor, region, &fields, aside, stack, clock::now);
        sample::tell(recording, committed)?;
        if !end.is_complete() {
            region.control().truncate();
        }
        slot.count_event(region.control());
        Ok(())
    }
}

#[inline(always)]
fn begin(recording: &Recording, stack_pointer: u64) -> Result<&'static Slot, Missed> {
    if recording.is_over() {
        return Err(Missed::Skipped(Skip::Stopped));
    }
    own_slot(stack_pointer).ok_or(Missed::Skipped(Skip::DisabledThread))
}

/// Counts an event as lost because its description did not fit the durable log.
#[cold]
pub fn lose_undescribed(recording: &Recording) {
    count_missed(recording, Missed::Lost(Loss::DurableFull));
}

#[cold]
fn count_missed(recording: &Recording, missed: Missed) {
    let control = recording.region.control();
    control.fire(1);
    outcome::count(control, &Err(missed), 1);
}
