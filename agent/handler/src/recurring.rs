//! Writes stacks that recur: those of allocations, many of which come from the same few places.
//!
//! A stack that the thread walked recently is recognised, without a walk, by the words of memory that the walk depended
//! on. If it was written to the current chunk, its record is only a reference to that. This applies only if all frames
//! are native: an interpreter's frames are read each time.
//!
//! If all allocations are recorded, those of one stack and size in one chunk are told apart no further than that: the
//! blocks of all have the id of the first, and the records of the others say only that they happened.

use shm_format::{AllocationNonce, Committed, Loss, Repeat, StackHead};
use unwind::{End, Memory, Registers};

use crate::arch::load;
use crate::caller::Caller;
use crate::clock;
use crate::recent_stacks::WrittenStack;
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

/// What became of an allocation.
pub(crate) struct Written {
    pub(crate) committed: Result<Committed, Loss>,
    pub(crate) end: End,
    /// The allocation whose id its block has.
    pub(crate) id_of: AllocationNonce,
}

/// Writes the stack of `caller`, without the called function. The caller holds the slot's nesting guard and has prepared
/// the slot.
pub(crate) fn write(
    recording: &Recording,
    slot: &Slot,
    caller: &Caller,
    allocation: AllocationNonce,
    may_share: bool,
) -> Written {
    let registers = caller.registers();
    let generation = snapshot::native_generation();
    if let Some(generation) = generation
        && let Some(written) = write_known(recording, slot, &registers, generation, allocation, may_share)
    {
        return written;
    }
    walk_and_write(recording, slot, caller, &registers, generation, allocation)
}

fn head(end: End, allocation: AllocationNonce) -> StackHead {
    StackHead { weight: 1, end: end as u8, source: Repeat::SOURCE, nonce: allocation.0 }
}

/// Writes a known stack; `None` if it is not known.
#[inline(always)]
fn write_known(
    recording: &Recording,
    slot: &Slot,
    registers: &Registers,
    generation: u32,
    allocation: AllocationNonce,
    may_share: bool,
) -> Option<Written> {
    // SAFETY: the caller holds the nesting guard, so nothing else uses the recent stacks.
    let recent = unsafe { &mut *slot.recent_stacks() };
    let (frames, written) = recent.find(generation, registers, &mut Own::of(slot, registers.sp()))?;
    let first = written.first(allocation).filter(|_| may_share);
    let nonce = first.map_or(allocation, AllocationNonce::further).0;
    let repeated = slot
        .cursor
        .repeat(&recording.region, written.position(), Repeat::SOURCE, nonce, clock::now)
        .transpose();
    let (committed, id_of) = match repeated {
        Some(committed) => {
            if first.is_none() && committed.is_ok() {
                written.begin(allocation);
            }
            (committed, first.unwrap_or(allocation))
        }
        None => {
            // SAFETY: the caller is inside the nesting guard, so nothing else uses the chain.
            let chain = unsafe { &mut *slot.chain() };
            // The chain must not compare with the last walk: this stack is another one.
            chain.walked(0);
            let head = head(End::Root, allocation);
            let committed = chain.write(&slot.cursor, &recording.region, head, frames, clock::now);
            *written = WrittenStack::new(chain.written(), allocation);
            chain.walked(0);
            (committed, allocation)
        }
    };
    Some(Written { committed, end: End::Root, id_of })
}

/// Walks and writes the stack, which may be known from then on.
#[inline(never)]
fn walk_and_write(
    recording: &Recording,
    slot: &Slot,
    caller: &Caller,
    registers: &Registers,
    generation: Option<u32>,
    allocation: AllocationNonce,
) -> Written {
    // SAFETY: the caller holds the nesting guard and has prepared the slot, so nothing else uses the workspace.
    let (mut bench, recent) = unsafe { (slot.bench(), &mut *slot.recent_stacks()) };
    let (walk, chain, frames) = caller.walk(recording, slot, &mut bench);
    // The innermost frame is the called function.
    let frames = frames.get(1..).unwrap_or(&[]);
    let head = head(walk.end, allocation);
    let committed = chain.write(&slot.cursor, &recording.region, head, frames, clock::now);
    let written = WrittenStack::new(chain.written(), allocation);
    if let Some(generation) = generation
        && walk.end == End::Root
    {
        let memory = &mut Own::of(slot, registers.sp());
        recent.keep(generation, registers, bench.stack_cache, memory, written);
    }
    Written { committed, end: walk.end, id_of: allocation }
}
