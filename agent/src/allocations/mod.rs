//! Allocations as events: this library stands in front of the program's allocator.
//!
//! Only in the build with the feature `allocations`, which is preloaded for `-e alloc` alone. The allocator stays the
//! program's own, whichever that is: each block is its block, unchanged, with nothing of ours before or in it. Whether a
//! block was sampled says a byte for its page, which is 0 for nearly all, then the table of live blocks.
//!
//! What must never happen here: an allocation by the program's allocator, a lock, a wait, a change of `errno`. A call may
//! come before anything has started, from a signal handler, under the loader's lock, in a child of `vfork`, or after
//! `exit`.

mod countdown;
mod entry;
mod real;

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use handler::call;
use handler::recording::{self, Recording};
use shm_format::{AllocationNonce, BlockId, Inserted, LiveBlocks};

use countdown::Countdown;
use entry::{ALLOCATING, Call, Kind, mode};

/// Bytes of the program's between samples on average; 1 samples all. 0 before the start, and [`NEVER`] where nothing is
/// sampled.
static MEAN: AtomicU64 = AtomicU64::new(NOT_YET);
const NOT_YET: u64 = 0;
const NEVER: u64 = u64::MAX;
const ALL: u64 = 1;

/// Calls inside one before it is known to have been left by an exception.
const NESTED_MOST: u64 = 16;
/// What `before` tells `after` of a call inside another, or that nothing is sampled.
const LEAVE_ALONE: u64 = u64::MAX;
/// No sampled block was given up.
const NO_BLOCK: u64 = 0;

/// Finds the real functions.
pub(crate) fn find_real_functions() {
    real::find_all();
}

/// Samples from now on, one allocation in `mean` bytes.
pub(crate) fn begin(mean: u64) {
    MEAN.store(mean.clamp(1, NEVER - 1), Ordering::Relaxed);
}

/// Samples nothing in this process.
pub(crate) fn never() {
    MEAN.store(NEVER, Ordering::Relaxed);
    for known in &entry::MODES {
        known.store(mode::PASSES, Ordering::Relaxed);
    }
}

/// Forgets, in a forked child, the sampled blocks of its parent.
pub(crate) fn forget_blocks() {
    for page in &entry::SAMPLED_PAGES {
        // A page of memory that is not written stays shared.
        if page.load(Ordering::Relaxed) != 0 {
            page.store(0, Ordering::Relaxed);
        }
    }
}

/// Before a call that may be sampled.
unsafe extern "C" fn before(call: &Call) -> u64 {
    let mean = MEAN.load(Ordering::Relaxed);
    let Some(own) = countdown::own() else { return LEAVE_ALONE };
    // SAFETY: the thread's own; a signal handler that gets in between leaves it as it was, or draws anew.
    let own = unsafe { &mut *own };
    if mean == NEVER {
        own.left = u64::MAX;
    }
    if mean == NOT_YET || mean == NEVER {
        return LEAVE_ALONE;
    }
    let stack_pointer = call as *const Call as u64;
    if own.inside != 0 {
        own.nested += 1;
        if stack_pointer < own.inside && own.nested <= NESTED_MOST {
            return LEAVE_ALONE;
        }
        // An exception has left that call.
        own.left = own.saved;
    }
    own.inside = stack_pointer;
    own.nested = 0;
    own.saved = own.left;
    // What this one calls comes here, too.
    own.left = 0;
    match call.given_up() {
        0 => NO_BLOCK,
        block => take_out(block).map_or(NO_BLOCK, |id| id.0),
    }
}

/// After it.
unsafe extern "C" fn after(call: &Call, given_up: u64, result: u64) {
    if given_up == LEAVE_ALONE {
        return;
    }
    let Some(own) = countdown::own() else { return };
    // SAFETY: as in `before`.
    let own = unsafe { &mut *own };
    own.inside = 0;
    own.left = own.saved;
    learn(call.kind(), own.nested != 0);
    let (block, size) = (call.block(result), call.size());
    if block == 0 {
        // The old block is still there, unless it was freed: by a size of 0.
        if given_up != NO_BLOCK && size != 0 {
            put_in(call.given_up(), BlockId(given_up));
        }
        return;
    }
    let mean = MEAN.load(Ordering::Relaxed);
    if mean == ALL {
        own.left = 0;
        return sample(own, call, block, size);
    }
    if !own.is_begun() {
        own.draw(mean);
    }
    match own.left.checked_sub(size).filter(|left| *left > 0) {
        Some(left) => own.left = left,
        None => {
            own.draw(mean);
            sample(own, call, block, size);
        }
    }
}

/// Samples an allocation.
#[inline(never)]
fn sample(own: &mut Countdown, call: &Call, block: u64, size: u64) {
    let Some(recording) = recording::current() else { return };
    own.serial += 1;
    let serial = own.serial;
    let nonce = AllocationNonce::new(size, serial).0;
    if let Some(thread) = call::record_allocation(recording, &call.caller(), nonce) {
        put_in(block, BlockId::new(thread, serial));
    }
}

/// A block is about to be freed that may have been sampled.
unsafe extern "C" fn freed(block: u64) {
    let _ = take_out(block);
}

/// The live blocks of this very process: a forked child that is not prepared yet has none.
fn live_blocks() -> Option<&'static LiveBlocks> {
    recording::current().and_then(|recording: &Recording| recording.live_blocks.as_ref())
}

fn page(block: u64) -> Option<&'static AtomicU8> {
    entry::SAMPLED_PAGES.get((block >> 12) as usize & (entry::PAGES - 1))
}

fn put_in(block: u64, id: BlockId) {
    let (Some(live), Some(page)) = (live_blocks(), page(block)) else { return };
    // First, so that whoever frees the block looks for it.
    let counted = count(page);
    if live.insert(block, id) != Inserted::New && counted {
        less(page);
    }
}

/// Counts a block in its page. A full count stays: then all blocks of the page are looked for, as is right where all of them
/// are sampled.
fn count(page: &AtomicU8) -> bool {
    if MEAN.load(Ordering::Relaxed) == ALL {
        if page.load(Ordering::Relaxed) != u8::MAX {
            page.store(u8::MAX, Ordering::Relaxed);
        }
        return false;
    }
    let more = |count: u8| count.checked_add(1);
    page.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

fn take_out(block: u64) -> Option<BlockId> {
    let id = live_blocks()?.remove(block)?;
    page(block).into_iter().for_each(less);
    Some(id)
}

fn less(page: &AtomicU8) {
    let less = |count: u8| if count == u8::MAX { None } else { count.checked_sub(1) };
    let _ = page.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

/// Learns whether a function calls another one of ours for its block, from two calls that agree: a signal handler that
/// allocates may look like that once.
fn learn(kind: Kind, nested: bool) {
    let Some(known) = entry::MODES.get(kind.0).filter(|_| kind.0 < ALLOCATING) else { return };
    let next = match (known.load(Ordering::Relaxed), nested) {
        (mode::UNKNOWN, false) => mode::ONCE_ALONE,
        (mode::UNKNOWN, true) => mode::ONCE_NESTED,
        (mode::ONCE_ALONE, false) => mode::COUNTS,
        (mode::ONCE_NESTED, true) => mode::PASSES,
        (mode::ONCE_ALONE | mode::ONCE_NESTED, _) => mode::UNKNOWN,
        _ => return,
    };
    known.store(next, Ordering::Relaxed);
}
