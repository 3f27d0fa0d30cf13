//! Writes the stacks of allocations if all are recorded: most come from places that recur.
//!
//! A stack that the thread walked recently is recognised, without a walk, by the words of memory that the walk depended
//! on. When it comes for the second time, it is written to the durable log under a number; from then on its allocations only
//! refer to that. An interpreter's frames are compared each time, or read.
//!
//! Allocations of one stack and size are told apart no further than that: they are counted, and their blocks have one id. In a
//! flight recorder each has a record besides, which is overwritten in its turn. What must never happen here: a count or a record
//! that refers to a stack that is not in the log yet.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use interpreter::Signals;
use interpreter::python::Calls;
use platform::activity::is_filtered;
use platform::arch::{load, load_xor};
use platform::clock;
use platform::log;
use shm_format::record::{FrameWords, RecurringStack};
use shm_format::{AlikeAllocations, AllocationNonce, BlockId, Committed, DurableRecord, Loss, Mode, Repeat};
use unwind::{End, KnownStacks, Leaf, Memory};

use crate::appended_stack::AppendedStack;
use crate::caller::{Caller, Note};
use crate::recent_stacks::{Kept, RecentStacks};
use crate::recording::Recording;
use crate::slot::{Slot, Workbench};
use crate::snapshot::{self, Pinned};

/// The number of the newest stack in the log.
static NEWEST: AtomicU32 = AtomicU32::new(0);

/// The region whose log takes no more stacks, by its nonce.
static FULL: AtomicU64 = AtomicU64::new(0);

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

    #[inline(always)]
    unsafe fn load_xor(&mut self, base: u64, index: u64, other: u64) -> u64 {
        // SAFETY: as in `load`.
        unsafe { load_xor(base, index, other) }
    }
}

/// What became of an allocation, with the id of its block.
pub(crate) enum Written {
    /// It was counted among others.
    Counted(BlockId),
    /// There is, or should be, a record.
    Recorded { committed: Result<Committed, Loss>, end: End, id: BlockId },
}

impl Written {
    /// Whether a walk has reached the root.
    fn is_rooted(&self) -> bool {
        matches!(self, Self::Recorded { end: End::Root, .. })
    }
}

/// Writes the stack of `caller`, without the called function. The caller holds the slot's nesting guard and has prepared
/// the slot.
#[inline(always)]
pub(crate) fn write(
    recording: &Recording,
    slot: &Slot,
    caller: &Caller,
    allocation: AllocationNonce,
) -> Written {
    // SAFETY: the caller holds the nesting guard and has prepared the slot, so nothing else uses the recent stacks.
    let recent = unsafe { slot.recent_stacks().as_mut() };
    let Some(recent) = recent.and_then(|recent| recent.is_worth_a_try().then_some(recent)) else {
        return walk(recording, slot, caller, allocation);
    };
    match snapshot::native_generation() {
        Some(generation) => write_native(recording, slot, caller, recent, generation, allocation),
        None => write_mixed(recording, slot, caller, recent, allocation),
    }
}

/// Recognises the stack, or walks it.
#[inline(always)]
fn write_native(
    recording: &Recording,
    slot: &Slot,
    caller: &Caller,
    recent: &mut RecentStacks,
    generation: u32,
    allocation: AllocationNonce,
) -> Written {
    let all = || caller.registers();
    let leaf = caller.leaf(&all);
    let memory = &mut Own::of(slot, leaf.sp);
    let Some(index) = recent.find(generation, &leaf, memory) else {
        return match has_room(recording) {
            true => learn_native(recording, slot, caller, recent, generation, allocation),
            false => miss(recording, slot, caller, recent, allocation),
        };
    };
    let kept = Kept::Native(index);
    match recent.number(kept, |recent| append_native(recording, slot, recent, index, memory)) {
        Some(stack) => repeat(recording, slot, recent, (kept, stack), allocation),
        None => miss(recording, slot, caller, recent, allocation),
    }
}

/// Walks a stack and keeps it.
#[inline(never)]
fn learn_native(
    recording: &Recording,
    slot: &Slot,
    caller: &Caller,
    recent: &mut RecentStacks,
    generation: u32,
    allocation: AllocationNonce,
) -> Written {
    let written = walk(recording, slot, caller, allocation);
    if written.is_rooted() {
        // SAFETY: the caller holds the nesting guard, and the walk is over, so nothing else uses the stack cache.
        let stack_cache = unsafe { &*slot.stack_cache() };
        let all = || caller.registers();
        let leaf = caller.leaf(&all);
        recent.keep(generation, &leaf, stack_cache, &mut Own::of(slot, leaf.sp), 0);
    }
    written
}

/// Walks a stack that cannot be kept, or was recognised to no avail.
#[cold]
#[inline(never)]
fn miss(
    recording: &Recording,
    slot: &Slot,
    caller: &Caller,
    recent: &mut RecentStacks,
    allocation: AllocationNonce,
) -> Written {
    recent.miss();
    walk(recording, slot, caller, allocation)
}

/// The same in a process in which there may be an interpreter's frames.
#[inline(never)]
fn write_mixed(
    recording: &Recording,
    slot: &Slot,
    caller: &Caller,
    recent: &mut RecentStacks,
    allocation: AllocationNonce,
) -> Written {
    let all = || caller.registers();
    let leaf = caller.leaf(&all);
    let memory = &mut Own::of(slot, leaf.sp);
    let known = match look_up(recording, slot, &leaf, recent, memory) {
        Known::Nothing => return walk(recording, slot, caller, allocation),
        Known::Generation(generation) => {
            let written = walk(recording, slot, caller, allocation);
            // SAFETY: the caller holds the nesting guard, and the walk is over.
            let Workbench { stack_cache, scratch, .. } = unsafe { slot.bench() };
            let calls = scratch.calls().and_then(Calls::packed);
            match calls.filter(|_| written.is_rooted() && has_room(recording)) {
                Some(calls) => recent.keep(generation, &leaf, stack_cache, memory, calls),
                None => recent.miss(),
            }
            return written;
        }
        Known::Frames(known) => known,
    };
    let Some(kept) = recent.find_mixed(known.hash) else {
        let written = walk(recording, slot, caller, allocation);
        match written.is_rooted() && has_room(recording) {
            true => recent.keep_mixed(known.hash),
            false => recent.miss(),
        }
        return written;
    };
    match recent.number(kept, |recent| append_mixed(recording, slot, caller, recent, known)) {
        Some(stack) => repeat(recording, slot, recent, (kept, stack), allocation),
        None => miss(recording, slot, caller, recent, allocation),
    }
}

/// What is known of a stack with an interpreter's frames.
enum Known {
    /// Only a walk can tell.
    Nothing,
    /// The generation of the modules; the native frames are not known.
    Generation(u32),
    /// All frames.
    Frames(KnownFrames),
}

#[derive(Clone, Copy)]
struct KnownFrames {
    /// Hash of the interpreter's frames.
    found: u64,
    /// Hash of these and the native ones.
    hash: u64,
}

/// What is known of the stack that a walk from `leaf` would find.
fn look_up(
    recording: &Recording,
    slot: &Slot,
    leaf: &Leaf<'_>,
    recent: &mut RecentStacks,
    memory: &mut Own,
) -> Known {
    // SAFETY: the caller holds the nesting guard and has prepared the slot, so nothing else uses the workspace.
    let Workbench { scratch, pin, .. } = unsafe { slot.bench() };
    scratch.forget_calls();
    let Some(pinned) = Pinned::new(pin).filter(|pinned| pinned.regions().is_empty()) else {
        return Known::Nothing;
    };
    let Some(python) = pinned.python() else { return Known::Nothing };
    let generation = pinned.modules().generation();
    let Some(index) = recent.find(generation, leaf, memory) else {
        return Known::Generation(generation);
    };
    let (sampled, innermost) = (slot.sampled(&recording.region, Signals::Open), leaf.sp);
    let found = recent.calls(index).and_then(|calls| {
        interpreter::find_again(python, &sampled, innermost, calls, &mut recent.walks, scratch)
    });
    let known = found.and_then(|found| Some(KnownFrames { found, hash: recent.mixed_hash(index, found)? }));
    known.map_or(Known::Nothing, Known::Frames)
}

/// Appends the native stack at `index`, which was just found in `memory`, to the durable log, as [`append`] does.
#[cold]
#[inline(never)]
fn append_native(
    recording: &Recording,
    slot: &Slot,
    recent: &mut RecentStacks,
    index: usize,
    memory: &mut Own,
) -> Option<u32> {
    let mut frames = [0; KnownStacks::<()>::DEPTH];
    let frames = recent.frames(index, memory, &mut frames);
    append(recording, slot, &mut recent.appended, frames)
}

/// Appends the stack of `caller` to the durable log, as [`append`] does, if it is still the `known` one.
#[cold]
#[inline(never)]
fn append_mixed(
    recording: &Recording,
    slot: &Slot,
    caller: &Caller,
    recent: &mut RecentStacks,
    known: KnownFrames,
) -> Option<u32> {
    // SAFETY: the caller holds the nesting guard and has prepared the slot, so nothing else uses the workspace.
    let mut bench = unsafe { slot.bench() };
    let (walk, _, frames) = caller.walk(recording, slot, &mut bench);
    let mut copy = [0; Repeat::DEPTH];
    // Without the called function.
    let frames = frames.get(1..)?;
    let copy = copy.get_mut(..frames.len())?;
    copy.copy_from_slice(frames);
    let is_same = walk.end == End::Root && bench.scratch.found_hash() == known.found;
    if is_same { append(recording, slot, &mut recent.appended, copy) } else { None }
}

/// Writes one more allocation of a stack that has this number in the log.
#[inline(always)]
fn repeat(
    recording: &Recording,
    slot: &Slot,
    recent: &mut RecentStacks,
    (kept, stack): (Kept, u32),
    allocation: AllocationNonce,
) -> Written {
    let (recordings, is_flight) = (recording.region.recordings(), recording.region.mode() == Mode::Overwrite);
    // A flight recorder's counts only tell what is shared. They serve for all of its recordings.
    let number = if is_flight { 0 } else { recordings };
    let counts = recording.allocation_counts.as_ref();
    let counted = counts.and_then(|counts| recent.count(kept, number, allocation.size(), counts));
    let (repeat, id) = match counted {
        Some(alike) if !is_flight => return Written::Counted(BlockId(alike.word())),
        Some(alike) => {
            let alike = alike.of_recording(recordings);
            (Repeat::Alike(alike), BlockId(alike.word()))
        }
        None => (Repeat::Single { stack, nonce: allocation.0 }, allocation.id(slot.sequence())),
    };
    let committed = slot.cursor.repeat(&recording.region, repeat, clock::now);
    Written::Recorded { committed, end: End::Root, id }
}

/// Appends a stack to the durable log. Returns its number, or `None` if there is no room.
fn append(recording: &Recording, slot: &Slot, last: &mut AppendedStack, frames: &[u64]) -> Option<u32> {
    if frames.is_empty() || !has_room(recording) {
        return None;
    }
    let number = NEWEST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    if number == 0 || number > AlikeAllocations::LAST_STACK {
        return None;
    }
    let (base, shared) = last.base_of(frames);
    let stack = RecurringStack {
        id: number,
        tid: slot.tid(),
        seq: slot.sequence(),
        base,
        shared: shared as u16,
        frames: FrameWords::new(frames.get(..frames.len() - shared)?),
    };
    let appended = log::append(&recording.region, &DurableRecord::RecurringStack(stack));
    if appended == Err(Loss::DurableFull) {
        FULL.store(recording.region.nonce(), Ordering::Relaxed);
    }
    appended.ok()?;
    last.set(number, frames);
    Some(number)
}

/// Whether the durable log may have room for another stack. An eighth of it is left to modules, threads and functions.
fn has_room(recording: &Recording) -> bool {
    let region = &recording.region;
    // A filter of system calls keeps it from growing.
    let capacity = if is_filtered() { region.durable_backed() } else { region.geometry().durable_capacity };
    FULL.load(Ordering::Relaxed) != region.nonce() && region.durable_used() <= capacity - capacity / 8
}

/// Walks and writes the stack.
#[inline(never)]
fn walk(recording: &Recording, slot: &Slot, caller: &Caller, allocation: AllocationNonce) -> Written {
    let note = Note { source: Repeat::SOURCE, nonce: allocation.0, weight: 1, with_callee: false };
    let (committed, end) = caller.write(recording, slot, note);
    Written::Recorded { committed, end, id: allocation.id(slot.sequence()) }
}
