//! Bounds the time that recording waits takes, as `--max-overhead` bounds the handler's.
//!
//! Where it takes more, the mean distance between samples is doubled until it does not, and halved again later. A sample
//! says which mean it was drawn with, so sums stay right; there are only fewer samples. The time is compared with that of
//! one processor, because threads that wait use none.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use handler::rate_limit::RateLimit;
use platform::clock;

use super::rate;

/// Largest share of a processor, in hundredths of a percent.
static LIMIT: AtomicU64 = AtomicU64::new(RateLimit::NO_LIMIT);
/// Ticks spent since [`SINCE`].
static SPENT: AtomicU64 = AtomicU64::new(0);
static SINCE: AtomicU64 = AtomicU64::new(0);
/// How often the mean is doubled at present.
static DOUBLED: AtomicU32 = AtomicU32::new(0);

const MOST_DOUBLED: u32 = 12;
/// How long the time is added up before it is compared.
const WINDOW_NS: u64 = 20_000_000;
/// A sample that seems to take longer was preempted.
const LONGEST_NS: u64 = 100_000;
/// The mean is halved again below this fraction of the limit.
const MARGIN: u64 = 4;

/// Sets the limit.
pub(super) fn begin(limit: u64) {
    LIMIT.store(limit, Ordering::Relaxed);
    SINCE.store(clock::now(), Ordering::Relaxed);
}

/// How often the mean is doubled.
pub(super) fn doubled() -> u32 {
    DOUBLED.load(Ordering::Relaxed)
}

/// A sample was recorded from `begun` until now.
pub(super) fn spend(begun: u64) {
    let (now, limit) = (clock::now(), LIMIT.load(Ordering::Relaxed));
    let ticks = now.saturating_sub(begun).min(rate::ticks(LONGEST_NS));
    SPENT.fetch_add(ticks, Ordering::Relaxed);
    let since = SINCE.load(Ordering::Relaxed);
    let passed = now.saturating_sub(since);
    if limit < RateLimit::NO_LIMIT
        && passed >= rate::ticks(WINDOW_NS)
        && SINCE.compare_exchange(since, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    {
        let spent = SPENT.swap(0, Ordering::Relaxed);
        DOUBLED.store(adapted(doubled(), share(spent, passed), limit), Ordering::Relaxed);
    }
}

/// In hundredths of a percent.
fn share(spent: u64, passed: u64) -> u64 {
    (u128::from(spent) * u128::from(RateLimit::NO_LIMIT) / u128::from(passed.max(1))) as u64
}

/// How often the mean is to be doubled, after samples took this share of a processor.
fn adapted(doubled: u32, share: u64, limit: u64) -> u32 {
    match share.checked_div(limit) {
        Some(0) if share < limit / MARGIN => doubled.saturating_sub(1),
        Some(0) => doubled,
        Some(times) => (doubled + times.ilog2() + 1).min(MOST_DOUBLED),
        None => MOST_DOUBLED,
    }
}
