//! The program's own code. It stays mapped as long as the process runs, so it may be read in place, whichever pointer leads there.
//!
//! That of libraries may not: another thread may unload them at any time.

use core::sync::atomic::{AtomicU64, Ordering};

use platform::bounds::Bounds;

static LOW: AtomicU64 = AtomicU64::new(0);
static HIGH: AtomicU64 = AtomicU64::new(0);

/// Notes where it is: one readable segment. Called before anything is sampled.
pub fn note(low: u64, high: u64) {
    LOW.store(low, Ordering::Relaxed);
    HIGH.store(high, Ordering::Relaxed);
}

/// Whether the eight bytes at `address` belong to it.
pub(crate) fn holds(address: u64) -> bool {
    Bounds { low: LOW.load(Ordering::Relaxed), high: HIGH.load(Ordering::Relaxed) }.hold(address)
}
