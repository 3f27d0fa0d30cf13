//! Code that stays mapped as long as the process runs: the program's, and that of the libraries it was started with. It may be
//! read in place, whichever pointer leads there.
//!
//! That of other libraries may not: another thread may unload them at any time.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::bounds::Bounds;

/// Segments that are remembered; what lies in others is copied.
const MOST: usize = 64;

struct Segment {
    low: AtomicU64,
    high: AtomicU64,
}

static SEGMENTS: [Segment; MOST] =
    [const { Segment { low: AtomicU64::new(0), high: AtomicU64::new(0) } }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Notes one readable segment. By one thread at a time.
pub fn note(low: u64, high: u64) {
    let count = COUNT.load(Ordering::Relaxed);
    let known = SEGMENTS.iter().take(count).any(|segment| segment.low.load(Ordering::Relaxed) == low);
    let Some(segment) = SEGMENTS.get(count).filter(|_| !known) else { return };
    segment.low.store(low, Ordering::Relaxed);
    segment.high.store(high, Ordering::Relaxed);
    // Release: pairs with the acquire in `holds`.
    COUNT.store(count + 1, Ordering::Release);
}

/// Whether the eight bytes at `address` belong to one of them.
pub(crate) fn holds(address: u64) -> bool {
    SEGMENTS.iter().take(COUNT.load(Ordering::Acquire)).any(|segment| {
        let (low, high) = (segment.low.load(Ordering::Relaxed), segment.high.load(Ordering::Relaxed));
        Bounds { low, high }.hold(address)
    })
}
