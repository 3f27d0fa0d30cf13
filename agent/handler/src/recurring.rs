//! Writes stacks that recur: those of allocations, many of which come from the same few places.
//!
//! A stack that the thread walked recently is recognised, without a walk, by the words of memory that the walk depended
//! on. If it was written to the current chunk, its record is only a reference to that. This applies only if all frames
//! are native: an interpreter's frames are read each time.

use shm_format::{Committed, Loss, Repeat, StackHead};
use unwind::{End, Memory, Registers};

use crate::arch::load;
use crate::caller::Caller;
use crate::clock;
use crate::recording::Recording;
use crate::slot::Slot;
use crate::snapshot;

/// The used part of a thread's own stack.
struct Own {
    low: u64,
    high: u64,
}

impl Own {
    fn of(slot: &Slot, sp: u64) -> Self {
        let bounds = slot.stack();
        if bounds.hold(sp) { Self { low: sp, high: bounds.high } } else { Self { low: 0, high: 0 } }
    }
}

impl Memory for Own {
    fn read(&mut self, _address: u64) -> Option<u64> {
        None
    }

    #[inline]
    fn known_until(&mut self, address: u64) -> u64 {
        if self.low <= address && address < self.high { self.high } else { address }
    }

    #[inline]
    unsafe fn load(&mut self, address: u64) -> u64 {
        // SAFETY: the caller stays within what `known_until` returned: the used part of the stack, which is mapped.
        unsafe { load(address) }
    }
}

/// What became of a stack.
pub(crate) struct Written {
    pub(crate) committed: Result<Committed, Loss>,
    pub(crate) end: End,
}

/// Writes the stack of `caller` for `nonce`, without the called function. The caller holds the slot's nesting guard and
/// has prepared the slot.
pub(crate) fn write(recording: &Recording, slot: &Slot, caller: &Caller, nonce: u64) -> Written {
    let registers = caller.registers();
    let generation = snapshot::native_generation();
    if let Some(generation) = generation
        && let Some(written) = write_known(recording, slot, &registers, generation, nonce)
    {
        return written;
    }
    walk_and_write(recording, slot, caller, &registers, generation, nonce)
}

fn head(end: End, nonce: u64) -> StackHead {
    StackHead { weight: 1, end: end as u8, source: Repeat::SOURCE, nonce }
}

/// Writes a known stack; `None` if it is not known.
#[inline(always)]
fn write_known(
    recording: &Recording,
    slot: &Slot,
    registers: &Registers,
    generation: u32,
    nonce: u64,
) -> Option<Written> {
    // SAFETY: the caller holds the nesting guard, so nothing else uses the recent stacks.
    let recent = unsafe { &mut *slot.recent_stacks() };
    let (frames, written) = recent.find(generation, registers, &mut Own::of(slot, registers.sp()))?;
    let repeated =
        slot.cursor.repeat(&recording.region, *written, Repeat::SOURCE, nonce, clock::now).transpose();
    let committed = match repeated {
        Some(committed) => committed,
        None => {
            // SAFETY: the caller is inside the nesting guard, so nothing else uses the chain.
            let chain = unsafe { &mut *slot.chain() };
            // The chain must not compare with the last walk: this stack is another one.
            chain.walked(0);
            let head = head(End::Root, nonce);
            let committed = chain.write(&slot.cursor, &recording.region, head, frames, clock::now);
            *written = chain.written();
            chain.walked(0);
            committed
        }
    };
    Some(Written { committed, end: End::Root })
}

/// Walks and writes the stack, which may be known from then on.
#[inline(never)]
fn walk_and_write(
    recording: &Recording,
    slot: &Slot,
    caller: &Caller,
    registers: &Registers,
    generation: Option<u32>,
    nonce: u64,
) -> Written {
    // SAFETY: the caller holds the nesting guard and has prepared the slot, so nothing else uses the workspace.
    let (mut bench, recent) = unsafe { (slot.bench(), &mut *slot.recent_stacks()) };
    let (walk, chain, frames) = caller.walk(recording, slot, &mut bench);
    // The innermost frame is the called function.
    let frames = frames.get(1..).unwrap_or(&[]);
    let head = head(walk.end, nonce);
    let committed = chain.write(&slot.cursor, &recording.region, head, frames, clock::now);
    let written = chain.written();
    if let Some(generation) = generation
        && walk.end == End::Root
    {
        let memory = &mut Own::of(slot, registers.sp());
        recent.keep(generation, registers, bench.stack_cache, memory, written);
    }
    Written { committed, end: walk.end }
}
