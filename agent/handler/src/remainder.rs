//! Samples for CPU time that no other sample accounts for, when a thread's recording begins and when the thread ends.
//!
//! A perf event occurs after a whole period, and a timer expires at the kernel's next tick: shorter threads would have
//! no sample at all, and the last part of every other thread would be missing. Since periods are counted from a random
//! point before the thread's start (`Since`), the last one is full with the right probability when the thread ends:
//! then it is sampled at that point. Likewise at the beginning, for the time that the loader took before the agent
//! started.

use core::ops::Range;

use shm_format::{Loss, Skip, StackHead};
use unwind::Frame;

use crate::activity::is_filtered;
use crate::arch;
use crate::clock;
use crate::ordinary_walk::{own_slot, walk};
use crate::outcome::{self, Missed};
use crate::recording::{Clock, Recording};
use crate::sample::{Sample, words};
use crate::slot::Slot;
use crate::tick::Tick;

/// Samples the calling thread here if there are full periods of CPU time that no sample accounts for. Frames in
/// `own_code`, from which this is called, are left out. No sampling signal may be pending.
#[inline(never)]
pub fn record(recording: &Recording, own_code: &Range<u64>) {
    let registers = arch::registers_here();
    let Some(slot) = own_slot(registers.sp()) else { return };
    let period_ns = slot.kernel_rings.counted_period_ns();
    // A seccomp filter may forbid reading the clock.
    if period_ns == 0 || is_filtered() || recording.is_over() || !recording.is_current() {
        return;
    }
    let due = slot.kernel_rings.take_due(clock::thread_cpu_ns(), period_ns);
    if due == 0 {
        return;
    }
    let control = recording.region.control();
    control.fire(due.into());
    let weight = due.saturating_add(slot.take_carried());
    let outcome = sample(recording, slot, &registers, own_code, weight);
    outcome::count(control, &outcome, weight);
}

fn sample(
    recording: &Recording,
    slot: &Slot,
    registers: &unwind::Registers,
    own_code: &Range<u64>,
    weight: u32,
) -> Result<(), Missed> {
    let _entered = slot.enter(registers.sp()).ok_or(Missed::Skipped(Skip::Nested))?;
    if !slot.prepare() {
        return Err(Missed::Lost(Loss::NoSlot));
    }
    let walk = walk(recording, slot, registers);
    // SAFETY: the guard makes this the only use of the stack cache.
    let frames = unsafe { &*slot.stack_cache() }.frames();
    let is_own = |frame: &&Frame| own_code.contains(&frame.address());
    let own = frames.iter().take_while(is_own).count();
    let sample = Sample::of_walk(recording, slot, walk, words(frames.get(own..).unwrap_or(frames)));
    let (source, nonce) = (Clock::ThreadTimer.number(), Tick::NO_NONCE);
    sample.record(StackHead { weight, end: 0, source, nonce })
}
