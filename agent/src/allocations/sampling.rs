//! Samples allocations: one per so many bytes on average, each with its stack and its block until that is freed.

use core::sync::atomic::{AtomicU64, Ordering};

use handler::call::{self, Note};
use handler::caller::Caller;
use handler::recording::{self, Recording};
use platform::arch::AnyAlignment;
use shm_format::{AllocationNonce, BlockId, Expected, Inserted, LiveBlocks, Repeat};

use super::allocation_call::Call;
use super::alone;
use super::countdown::{self, Countdown};
use super::mode;
use super::sampled_blocks::Sampled;
use crate::agent;
use crate::journal;
use crate::link_map;
use crate::live_tables;

/// Average number of bytes between samples; 1 samples everything. 0 before the start, and [`NEVER`] if nothing is sampled.
static MEAN: AtomicU64 = AtomicU64::new(NOT_YET);
const NOT_YET: u64 = 0;
const NEVER: u64 = u64::MAX;
const ALL: u64 = 1;

/// Bytes of records that a recording of a running process may take, in address space.
const POOL: usize = 64 << 20;

/// Log space in bytes for the stacks of all allocations, if handlers cannot back it: some 50,000 stacks.
const LOG: u64 = 4 << 20;

/// Bytes after which a thread looks again whether anything is sampled.
const SELDOM: u64 = 1 << 40;

/// Nested calls after which the outer one is assumed to have been left by an exception.
const NESTED_MOST: u64 = 16;
/// Returned by `before` for a nested call, or if nothing is sampled.
const LEAVE_ALONE: u64 = u64::MAX;
/// No sampled block was given up.
const NO_BLOCK: u64 = 0;

/// Starts sampling, one allocation per `mean` bytes on average.
pub(super) fn begin(recording: &Recording, mean: u64) {
    if link_map::is_without_loader() {
        alone::end();
        countdown::SHARED.begin();
        mode::set_all(mode::UNKNOWN);
        // Threads are met in their first allocation, where nothing can be mapped.
        journal::extend_pool(recording, POOL);
    }
    if mean == ALL {
        journal::open_log(recording, LOG);
    }
    MEAN.store(mean.clamp(1, NEVER - 1), Ordering::Relaxed);
}

/// Disables sampling in this process.
pub(crate) fn never() {
    MEAN.store(NEVER, Ordering::Relaxed);
    mode::set_all(mode::PASSES);
}

/// Runs before a call that may be sampled.
pub(super) unsafe extern "C" fn before(call: &Call) -> u64 {
    let _any_alignment = AnyAlignment::permit();
    let mean = MEAN.load(Ordering::Relaxed);
    let Some(own) = countdown::own() else { return LEAVE_ALONE };
    // SAFETY: the thread's own state; a signal handler that interrupts restores it or draws a new distance.
    let own = unsafe { &mut *own };
    if mean == NEVER {
        // Threads that nobody has seen yet would share it for ever.
        alone::end();
        own.set_left(SELDOM);
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
        // An exception left that call.
        own.set_left(own.saved);
    }
    own.inside = stack_pointer;
    own.nested = 0;
    if mean != ALL {
        own.saved = own.left();
        // Functions that this one calls come here too.
        own.set_left(0);
    }
    match call.given_up() {
        0 => NO_BLOCK,
        block => take_out(block).map_or(NO_BLOCK, |id| id.0),
    }
}

/// Runs after such a call of the function at `entry`.
#[inline(always)]
pub(super) fn after(call: &Call, entry: u64, given_up: u64, result: u64) {
    if given_up == LEAVE_ALONE {
        return;
    }
    let Some(own) = countdown::own() else { return };
    // SAFETY: as in `before`.
    let own = unsafe { &mut *own };
    let mean = MEAN.load(Ordering::Relaxed);
    own.inside = 0;
    match mean {
        ALL => own.skip_none(),
        _ => own.set_left(own.saved),
    }
    mode::learn(call.kind(), own.nested != 0);
    let (block, size) = (call.block(result), call.size());
    if block == 0 {
        // The old block still exists, unless a size of 0 freed it.
        if given_up != NO_BLOCK && size != 0 {
            put_back(call.given_up(), BlockId(given_up));
        }
        return;
    }
    if mean != ALL && !own.is_reached_by(size, mean) {
        return;
    }
    sample(own, &call.caller(entry), block, size);
}

/// Records a sampled allocation.
#[inline(always)]
fn sample(own: &mut Countdown, caller: &Caller, block: u64, size: u64) {
    let Some(recording) = recording::current() else { return };
    // A child of `vfork` is a thread of another process.
    if link_map::is_without_loader() && !agent::is_own_process() {
        return;
    }
    let live = recording.live_blocks.as_ref();
    // The table is far larger than the caches; its line arrives while the stack is walked.
    let expected = live.map(|live| live.expect(block));
    own.serial += 1;
    let allocation = AllocationNonce::new(size, own.serial);
    let id = match MEAN.load(Ordering::Relaxed) {
        // Each counts as one, so equal ones need not be told apart.
        ALL => call::record_allocation(recording, caller, allocation),
        _ => {
            let note = Note { source: Repeat::SOURCE, nonce: allocation.0, weight: 1, with_callee: false };
            call::record(recording, caller, note).map(|thread| allocation.id(thread))
        }
    };
    if let (Some(id), Some(live), Some(expected)) = (id, live, expected) {
        put_in(live, block, &expected, id);
    }
}

/// Runs before a block is freed that may have been sampled.
pub(super) unsafe extern "C" fn freed(block: u64) {
    let _any_alignment = AnyAlignment::permit();
    let _ = take_out(block);
}

/// The live blocks of this process; `None` in a forked child that has not been set up yet.
fn live_blocks() -> Option<&'static LiveBlocks> {
    recording::current().and_then(|recording: &Recording| recording.live_blocks.as_ref())
}

#[cold]
fn put_back(block: u64, id: BlockId) {
    if let Some(live) = live_blocks() {
        put_in(live, block, &live.expect(block), id);
    }
}

#[inline(always)]
fn put_in(live: &LiveBlocks, block: u64, expected: &Expected<'_>, id: BlockId) {
    let sampled = Sampled::at(block);
    // First, so that a thread that frees the block looks it up.
    let counted = match MEAN.load(Ordering::Relaxed) {
        ALL => {
            sampled.look_up_all();
            false
        }
        _ => sampled.add(),
    };
    if live.insert(expected, id) != Inserted::New && counted {
        sampled.remove();
    }
    if live.is_crowded() {
        live_tables::grow_blocks(live);
    }
}

fn take_out(block: u64) -> Option<BlockId> {
    let id = live_blocks()?.remove(block)?;
    if MEAN.load(Ordering::Relaxed) != ALL {
        Sampled::at(block).remove();
    }
    Some(id)
}
