//! The countdown of a process's only thread: in the cache line that every allocation reads, not in thread-local storage.
//!
//! Nobody says when there is a second thread. Both then share the countdown, until it expires in another thread than the first. From
//! then on each has its own, which the exponential distribution permits at any time, because it has no memory.
//!
//! What must never happen here: a line that several threads keep writing to.

use core::sync::atomic::{AtomicU64, Ordering};

use super::real::REALS;

/// The pointer of the thread that is alone, or one of these.
static OWNER: AtomicU64 = AtomicU64::new(NOBODY);
const NOBODY: u64 = 0;
/// The process has, or has had, several threads.
const SEVERAL: u64 = 1;

/// The countdown of the calling thread, whose thread pointer is `thread`, if it is alone.
#[inline(never)]
pub(super) fn left_of(thread: u64) -> Option<&'static AtomicU64> {
    let owner = OWNER.load(Ordering::Relaxed);
    let is_first = || {
        owner == NOBODY && OWNER.compare_exchange(owner, thread, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    if owner == thread || is_first() {
        return Some(&REALS.left);
    }
    end();
    None
}

/// From now on each thread has its own.
pub(super) fn end() {
    // Not more often than necessary: other threads read the line.
    if OWNER.load(Ordering::Relaxed) != SEVERAL {
        OWNER.store(SEVERAL, Ordering::Relaxed);
    }
    skip_none();
}

/// Ends the countdown, if it is in use.
#[inline(always)]
pub(super) fn skip_none() {
    if REALS.left.load(Ordering::Relaxed) != 0 {
        REALS.left.store(0, Ordering::Relaxed);
    }
}
