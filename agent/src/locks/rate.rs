//! Converts nanoseconds to ticks of the agent's clock.
//!
//! Accurate to some parts per thousand: this only decides which waits are sampled. Their lengths are recorded in ticks,
//! which the reader converts more accurately.

use core::sync::atomic::{AtomicU64, Ordering};

use platform::clock;

use crate::kernel;

/// Ticks per [`UNIT_NS`]; 0 while unknown.
static RATE: AtomicU64 = AtomicU64::new(0);
const UNIT_NS: u64 = 1 << 20;

/// Converts nanoseconds to ticks, once the clock's rate has been [measured](learn).
pub(super) fn ticks(ns: u64) -> u64 {
    let ticks = u128::from(ns) * u128::from(RATE.load(Ordering::Relaxed)) / u128::from(UNIT_NS);
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// Measures the clock's rate; takes about 50 us.
pub(super) fn learn() {
    /// A pair of readings is discarded if its uncertainty exceeds this fraction of the time between the two.
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

/// A time in ticks and in nanoseconds, and the ticks that it took to read both.
fn reading() -> (u64, u64, u64) {
    let before = clock::now();
    let ns = kernel::clock_ns(libc::CLOCK_MONOTONIC);
    let took = clock::now().wrapping_sub(before);
    (before.wrapping_add(took / 2), ns, took)
}
