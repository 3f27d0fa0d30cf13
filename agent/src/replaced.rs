//! Gives back the memory of a region in whose place there is another one, after an attach with other settings or to allocations.
//!
//! A thread may still be about to access it: one that was interrupted in a redirected call, for as long as that takes. So its
//! addresses stay mapped, but to zeros instead of the file, which readers keep. What must never happen here: that an address of a
//! region becomes invalid.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};

use handler::recording::Recording;
use shm_format::{AllocationCounts, LiveBlocks};

use crate::kernel;

/// The recording that was replaced last and has not been released, or null.
static LAST: AtomicPtr<Recording> = AtomicPtr::new(ptr::null_mut());

/// Notes that `recording` was replaced. What threads are just writing to it is still for its reader.
pub(crate) fn note(recording: &'static Recording) {
    exchange(ptr::from_ref(recording).cast_mut());
}

/// Gives back the memory of all recordings that were replaced.
pub(crate) fn release() {
    exchange(ptr::null_mut());
}

/// Gives back the memory of those noted before.
fn exchange(recording: *mut Recording) {
    // SAFETY: a recording is never freed.
    let Some(before) = (unsafe { LAST.swap(recording, Ordering::Relaxed).as_ref() }) else { return };
    let release = |base: NonNull<u8>, bytes| {
        // SAFETY: mapped for that recording alone, which has been over for long.
        unsafe { kernel::replace_by_zeros(base.as_ptr(), bytes) };
    };
    before.region.visit_parts(release);
    // An injected agent records no mappings.
    if let Some((base, bytes)) = before.live_blocks.as_ref().map(LiveBlocks::memory) {
        release(base, bytes);
    }
    if let Some((base, bytes)) = before.allocation_counts.as_ref().map(AllocationCounts::memory) {
        release(base, bytes);
    }
}
