//! How many ticks of the agent's clock a time is.
//!
//! To some parts in a thousand: this only decides which waits are sampled. How long they were is told in ticks, which
//! the reader knows better.

use core::sync::atomic::{AtomicU64, Ordering};

use handler::clock;

use crate::kernel;

/// Ticks in [`UNIT_NS`]; 0 while unknown.
static RATE: AtomicU64 = AtomicU64::new(0);
const UNIT_NS: u64 = 1 << 20;

/// So many nanoseconds in ticks, once the clock's rate is [known](learn).
pub(super) fn ticks(ns: u64) -> u64 {
    let ticks = u128::from(ns) * u128::from(RATE.load(Ordering::Relaxed)) / u128::from(UNIT_NS);
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// Learns the clock's rate, in about 50 us.
pub(super) fn learn() {
    /// Readings that are further apart than this part of the time between them were interrupted.
    const PRECISION: u64 = 32;
    const ATTEMPTS: usize = 8;
    const BASE_LINE_NS: u64 = 50_000;
    if RATE.load(Ordering::Relaxed) != 0 {
        return;
    }
    let mut rate = UNIT_NS;
    for _ in 0..if clock::is_counter() { ATTEMPTS } else { 0 } {
        let (first, ns, doubt) = reading();
        let (mut last, mut later, mut more) = reading();
        while later - ns < BASE_LINE_NS {
            (last, later, more) = reading();
        }
        let (ticks, ns) = (last - first, later - ns);
        rate = (u128::from(ticks) * u128::from(UNIT_NS) / u128::from(ns)) as u64;
        if (doubt + more) * PRECISION < ticks {
            break;
        }
    }
    RATE.store(rate.max(1), Ordering::Relaxed);
}

/// A moment in ticks and in nanoseconds, and the ticks that it took to find out.
fn reading() -> (u64, u64, u64) {
    let before = clock::now();
    let ns = kernel::clock_ns(libc::CLOCK_MONOTONIC);
    let took = clock::now().wrapping_sub(before);
    (before.wrapping_add(took / 2), ns, took)
}
