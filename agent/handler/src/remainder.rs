//! Samples for CPU time that no other sample accounts for, when a thread's recording begins and when the thread ends.
//!
//! A perf event occurs after a whole period, and a timer expires at the kernel's next tick: shorter threads would have
//! no sample at all, and the last part of every other thread would be missing. Since periods are counted from a random
//! point before the thread's start (`Since`), the last one is full with the right probability when the thread ends.
//! Likewise at the beginning, for the time that the loader took before the agent started, and the agent itself.
//!
//! Where the thread was in that time is not known. So of its stack these samples have the outermost frame alone, and a
//! mark: the place where a thread ends, or the agent starts, must never appear to have taken the time.

use platform::activity::is_filtered;
use shm_format::{Loss, Skip, StackHead};
use unwind::{End, Frame, Interpreted, Registers};

use crate::arch;
use crate::ordinary_walk::{own_slot, walk_on};
use crate::outcome::{self, Missed, Outcome};
use crate::recording::{Clock, Recording};
use crate::sample::Sample;
use crate::slot::Slot;
use crate::tick::Tick;

/// When the time passed that a sample stands for; the offset of an [`Interpreted`] without a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Unplaced {
    /// From the exec until the agent started: the work of the kernel and of the dynamic loader.
    ProgramStart = 5,
    /// While the agent started.
    AgentStart = 6,
    /// Between the thread's last sample and its end.
    SinceLastSample = 7,
}

/// Samples the calling thread if there are full periods before `until_ns` of its CPU time that no sample accounts for. No
/// sampling signal may be pending.
#[inline(never)]
pub fn record(recording: &Recording, unplaced: Unplaced, until_ns: u64) {
    let registers = arch::registers_here();
    let Some(slot) = own_slot(registers.sp()) else { return };
    let period_ns = slot.kernel_rings.counted_period_ns();
    if period_ns == 0 || is_filtered() || recording.is_over() || !recording.is_current() {
        return;
    }
    let due = slot.kernel_rings.take_due(until_ns, period_ns);
    if due == 0 {
        return;
    }
    let control = recording.region.control();
    control.fire(due.into());
    let weight = due.saturating_add(slot.take_carried());
    let outcome = sample(recording, slot, &registers, unplaced, weight);
    outcome::count(control, &outcome, weight);
}

fn sample(
    recording: &Recording,
    slot: &Slot,
    registers: &Registers,
    unplaced: Unplaced,
    weight: u32,
) -> Outcome {
    let _entered = slot.enter(registers.sp()).ok_or(Missed::Skipped(Skip::Nested))?;
    if !slot.prepare() {
        return Err(Missed::Lost(Loss::NoSlot));
    }
    // SAFETY: the guard is held and the slot is prepared, so nothing else uses the workspace.
    let mut bench = unsafe { slot.bench() };
    let (walk, _) = walk_on(recording, slot, registers, &mut bench);
    let outermost = bench.stack_cache.frames().last().filter(|_| walk.end.is_complete()).copied();
    // What is recorded is not what was walked: the next walk must not share frames with it.
    bench.stack_cache.forget();
    bench.chain.walked(0);
    let mark = Frame::interpreted(Interpreted { function: Interpreted::NOTHING, offset: unplaced as u32 });
    let (both, alone) = (outermost.map(|frame| [mark.bits(), frame.bits()]), [mark.bits()]);
    let frames = both.as_ref().map_or(&alone[..], |both| both);
    let sample = Sample::of_walk(recording, slot, End::Root, frames);
    let (source, nonce) = (Clock::ThreadTimer.number(), Tick::NO_NONCE);
    sample.record(StackHead { weight, end: 0, source, nonce })
}
