//! One sampled allocation: its stack, from ordinary context, and its entry among the live blocks.
//!
//! The program has called an allocator and waits for its block, so no signal has saved its registers: the entry has, of
//! those that a call preserves. All else is as in the signal handler, whose rules hold here too (`ordinary_walk`).

use shm_format::{AllocationNonce, Loss, Skip};

use crate::caller::Caller;
use crate::clock;
use crate::ordinary_walk::{own_slot, walk};
use crate::outcome::{self, Missed};
use crate::recording::{Probe, Recording};
use crate::sample::{Sample, words};

/// Records an allocation of `size` bytes, the `serial`-th of the calling thread. The number of that thread; none if there
/// is no record of it.
pub fn record(recording: &Recording, caller: &Caller, size: u64, serial: u64) -> Option<u32> {
    let entered = clock::now();
    let control = recording.region.control();
    control.fire(1);
    let sampled = sample(recording, caller, size, serial);
    let (outcome, thread) = match sampled {
        Ok(thread) => (Ok(()), Some(thread)),
        Err(missed) => (Err(missed), None),
    };
    outcome::count(control, &outcome, 1);
    control.handler_time(clock::now().wrapping_sub(entered));
    thread
}

fn sample(recording: &Recording, caller: &Caller, size: u64, serial: u64) -> Result<u32, Missed> {
    if recording.is_over() {
        return Err(Missed::Skipped(Skip::Stopped));
    }
    let slot = own_slot(caller.stack_pointer).ok_or(Missed::Skipped(Skip::DisabledThread))?;
    let _entered = slot.nesting.enter().ok_or(Missed::Skipped(Skip::Nested))?;
    if !recording.is_current() {
        return Err(Missed::Skipped(Skip::Stopped));
    }
    if !slot.prepare() {
        return Err(Missed::Lost(Loss::NoSlot));
    }
    let walk = walk(recording, slot, &caller.registers());
    // SAFETY: the guard makes this the only use of the stack cache.
    let frames = words(unsafe { &*slot.stack_cache() }.frames());
    // The innermost frame is the allocator's entry.
    let sample = Sample::of_walk(recording, slot, walk, frames.get(1..).unwrap_or(&[]));
    sample.record(1, Probe::Allocations.number(), AllocationNonce::new(size, serial).0)?;
    sample.count_end();
    Ok(slot.sequence())
}
