//! Writes the stacks of allocations if all are recorded: most come from places that recur.
//!
//! A stack that the thread walked recently is recognised, without a walk, by the words of memory that the walk depended
//! on. When it comes for the second time, it is written to the durable log under a number; from then on its allocations only
//! refer to that. This applies only if all frames are native: an interpreter's frames are read each time.
//!
//! Allocations of one stack and size are told apart no further than that: they are counted, and their blocks have one id. In a
//! flight recorder each has a record besides, which is overwritten in its turn. What must never happen here: a count or a record
//! that refers to a stack that is not in the log yet.

use core::sync::atomic::{AtomicU32, Ordering};

use shm_format::record::{FrameWords, RecurringStack};
use shm_format::{AlikeAllocations, AllocationNonce, BlockId, Committed, DurableRecord, Loss, Mode, Repeat};
use unwind::{End, Memory};

use crate::arch::load;
use crate::caller::{Caller, Note};
use crate::clock;
use crate::recording::Recording;
use crate::slot::Slot;
use crate::snapshot;

/// Bytes of the durable log in which stacks are written; the rest is for modules and threads.
pub const STACK_LOG: u64 = 4 << 20;

/// The number of the newest stack in the log.
static NEWEST: AtomicU32 = AtomicU32::new(0);

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
    /// The id of its block.
    pub(crate) id: BlockId,
}

/// Writes the stack of `caller`, without the called function. The caller holds the slot's nesting guard and has prepared
/// the slot.
pub(crate) fn write(
    recording: &Recording,
    slot: &Slot,
    caller: &Caller,
    allocation: AllocationNonce,
) -> Written {
    let registers = caller.registers();
    // SAFETY: the caller holds the nesting guard and has prepared the slot, so nothing else uses the recent stacks.
    let recent = unsafe { slot.recent_stacks().as_mut() };
    let recent = recent.and_then(|recent| recent.is_worth_a_try().then_some(recent));
    let (Some(generation), Some(recent)) = (snapshot::native_generation(), recent) else {
        return walk(recording, slot, caller, allocation);
    };
    let memory = &mut Own::of(slot, registers.sp());
    let Some(index) = recent.find(generation, &registers, memory) else {
        let written = walk(recording, slot, caller, allocation);
        if written.end == End::Root {
            // SAFETY: the caller holds the nesting guard, and the walk is over, so nothing else uses the stack cache.
            let stack_cache = unsafe { &*slot.stack_cache() };
            recent.keep(generation, &registers, stack_cache, memory);
        }
        return written;
    };
    let Some(stack) = recent.number(index, |frames| append(recording, slot, frames), memory) else {
        recent.miss();
        return walk(recording, slot, caller, allocation);
    };
    let (recordings, is_flight) = (recording.region.recordings(), recording.region.mode() == Mode::Overwrite);
    // A flight recorder's counts only tell what is shared. They serve for all of its recordings.
    let number = if is_flight { 0 } else { recordings };
    let counts = recording.allocation_counts.as_ref();
    let counted = counts.and_then(|counts| recent.count(index, number, allocation.size(), counts));
    let (repeat, id) = match counted {
        Some(alike) if !is_flight => {
            return Written {
                committed: Ok(Committed::UNNOTICED),
                end: End::Root,
                id: BlockId(alike.word()),
            };
        }
        Some(alike) => {
            let alike = alike.of_recording(recordings);
            (Repeat::Alike(alike), BlockId(alike.word()))
        }
        None => (Repeat::Single { stack, nonce: allocation.0 }, allocation.id(slot.sequence())),
    };
    Written { committed: slot.cursor.repeat(&recording.region, repeat, clock::now), end: End::Root, id }
}

/// Appends a stack to the durable log. Returns its number, or `None` if there is no room.
fn append(recording: &Recording, slot: &Slot, frames: &[u64]) -> Option<u32> {
    if frames.is_empty() || recording.region.durable_used() + RECORD_MOST > STACK_LOG {
        return None;
    }
    let number = NEWEST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    if number == 0 || number > AlikeAllocations::LAST_STACK {
        return None;
    }
    let stack =
        RecurringStack { id: number, tid: slot.tid(), seq: slot.sequence(), frames: FrameWords::new(frames) };
    recording.region.append(&DurableRecord::RecurringStack(stack)).ok()?;
    Some(number)
}

/// Most bytes of a stack in the log.
const RECORD_MOST: u64 = 24 + 8 * Repeat::DEPTH as u64;

/// Walks and writes the stack.
fn walk(recording: &Recording, slot: &Slot, caller: &Caller, allocation: AllocationNonce) -> Written {
    let note = Note { source: Repeat::SOURCE, nonce: allocation.0, with_callee: false };
    let (committed, end) = caller.write(recording, slot, note);
    Written { committed, end, id: allocation.id(slot.sequence()) }
}
