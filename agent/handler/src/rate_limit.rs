//! The rate limiter: a token bucket that bounds the share of CPU time spent on sampling.
//!
//! Every tick refills the bucket by its share of the CPU time that it stands for; every sample takes the ticks that its
//! handler took. While the bucket is empty no stack is walked: the weight of the tick is carried over to the thread's
//! next sample, so the profile has the right total and fewer samples. What a thread carries over at its end goes to the
//! next sample of any thread. The bucket is shared by the process. A handler run that took much longer than the moving
//! average was probably preempted; then the thread's CPU clock tells the time that it really took.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use platform::activity::is_filtered;
use platform::clock::{self, SECOND_NS};

/// A run longer than this many times the average, or than [`FIRST_RUN`], is checked against the CPU clock.
const LONG_RUN: u64 = 4;
/// A run counts as at most this many times the average.
const LONGEST_RUN: u64 = 8;
/// Time span in nanoseconds for which the clock's rate is stored.
const RATE_NS: u64 = 1 << 16;
/// Weight of the moving average: a run changes it by this fraction of the difference.
const INERTIA: u64 = 16;
/// Cap of the first runs, in clock ticks, until the clock's rate is known.
const FIRST_RUN: u64 = 1 << 18;
/// Clock ticks needed to measure the rate of the clock.
const BASE_LINE: u64 = 1 << 26;
/// The two clocks must be read within this fraction of the base line.
const PRECISION: u64 = 64;

/// Decides whether a sample may be taken.
#[derive(Debug)]
#[repr(C)]
pub struct RateLimit {
    limit: AtomicU64,
    /// Periods carried over by threads that have ended.
    orphaned: AtomicU32,
    period_ns: AtomicU64,
    /// Clock ticks that one period of the source adds to the bucket; 0 while unknown.
    refill: AtomicU64,
    /// Moving average of the clock ticks per run; 0 while unknown.
    average: AtomicU64,
    tokens: AtomicI64,
    /// Clock ticks in [`RATE_NS`]; 0 while unknown.
    rate: AtomicU64,
    /// Ticks and nanoseconds read at the same time.
    began: (u64, u64),
}

impl RateLimit {
    /// A limit of 100 %: no limit.
    pub const NO_LIMIT: u64 = 10_000;

    /// Limits handlers to `limit` hundredths of a percent of CPU time. A tick's weight counts periods of `period_ns`.
    pub fn new(limit: u64, period_ns: u64) -> Self {
        Self {
            began: (clock::now(), clock::monotonic_ns()),
            limit: AtomicU64::new(limit),
            period_ns: AtomicU64::new(period_ns),
            refill: AtomicU64::new(0),
            average: AtomicU64::new(0),
            tokens: AtomicI64::new(0),
            rate: AtomicU64::new(0),
            orphaned: AtomicU32::new(0),
        }
    }

    /// Whether there is a limit.
    pub(crate) fn is_set(&self) -> bool {
        self.limit.load(Ordering::Relaxed) < Self::NO_LIMIT
    }

    /// Carries the periods of an ended thread over to the next sample of any thread.
    pub fn inherit(&self, periods: u32) {
        if periods > 0 {
            self.orphaned.fetch_add(periods, Ordering::Relaxed);
        }
    }

    /// Takes the periods carried over by ended threads.
    pub fn take_orphaned(&self) -> u32 {
        if self.orphaned.load(Ordering::Relaxed) == 0 { 0 } else { self.orphaned.swap(0, Ordering::Relaxed) }
    }

    /// Changes limit and period.
    pub fn set(&self, limit: u64, period_ns: u64) {
        self.limit.store(limit, Ordering::Relaxed);
        self.period_ns.store(period_ns, Ordering::Relaxed);
        self.refill.store(0, Ordering::Relaxed);
    }

    /// Refills the bucket by this many periods, and returns whether the tick may be sampled.
    #[inline]
    pub(crate) fn admits(&self, periods: u32) -> bool {
        !self.is_set() || self.refills(periods)
    }

    #[inline(never)]
    fn refills(&self, periods: u32) -> bool {
        let refill = match self.refill.load(Ordering::Relaxed) {
            0 => self.learn(),
            known => known,
        };
        if refill == 0 {
            return true;
        }
        // The bucket holds at most the refill of one second.
        let most =
            as_signed(refill.saturating_mul(SECOND_NS / self.period_ns.load(Ordering::Relaxed).max(1)));
        let more = as_signed(refill.saturating_mul(periods.into()));
        let tokens = self.tokens.fetch_add(more, Ordering::Relaxed).saturating_add(more);
        if tokens > most {
            self.tokens.fetch_sub(tokens - most, Ordering::Relaxed);
        }
        tokens >= 0
    }

    /// Takes the ticks of a handler run from the bucket. `cpu_ns` is the thread's CPU clock at the start of the run; 0
    /// if it was not read.
    #[inline(never)]
    pub(crate) fn spend(&self, ticks: u64, cpu_ns: u64) {
        let average = match self.average.load(Ordering::Relaxed) {
            0 => ticks.clamp(1, FIRST_RUN),
            known => known,
        };
        let is_long = ticks > average.saturating_mul(LONG_RUN).min(FIRST_RUN);
        let ticks = match self.rate.load(Ordering::Relaxed) {
            _ if !is_long || cpu_ns == 0 || is_filtered() => ticks,
            0 => ticks.min(FIRST_RUN),
            rate => {
                let taken = clock::thread_cpu_ns().saturating_sub(cpu_ns);
                ticks.min(taken.saturating_mul(rate) / RATE_NS)
            }
        };
        let ticks = ticks.min(average.saturating_mul(LONGEST_RUN));
        let next = (average * (INERTIA - 1) + ticks).div_ceil(INERTIA);
        self.average.store(next, Ordering::Relaxed);
        self.tokens.fetch_sub(as_signed(ticks), Ordering::Relaxed);
    }

    /// Determines the refill per period, once enough time has passed to measure the clock's rate. Makes one system
    /// call.
    #[cold]
    fn learn(&self) -> u64 {
        let (ticks, ns) = self.began;
        if clock::now().wrapping_sub(ticks) < BASE_LINE || is_filtered() {
            return 0;
        }
        let before = clock::now();
        let passed_ns = clock::monotonic_ns().saturating_sub(ns).max(1);
        let passed = before.wrapping_sub(ticks);
        if clock::now().wrapping_sub(before) > passed / PRECISION {
            // Interrupted between the readings.
            return 0;
        }
        let (limit, period_ns) = (self.limit.load(Ordering::Relaxed), self.period_ns.load(Ordering::Relaxed));
        let in_ticks = |ns: u128| (ns * u128::from(passed) / u128::from(passed_ns)) as u64;
        let share = in_ticks(u128::from(period_ns) * u128::from(limit) / u128::from(Self::NO_LIMIT)).max(1);
        // The first runs are slow because of cold caches: start with a full bucket.
        self.tokens.store(as_signed(share.saturating_mul(SECOND_NS / period_ns.max(1))), Ordering::Relaxed);
        self.rate.store(in_ticks(RATE_NS.into()), Ordering::Relaxed);
        self.refill.store(share, Ordering::Relaxed);
        share
    }
}

fn as_signed(ticks: u64) -> i64 {
    i64::try_from(ticks).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limiter with a clock of one tick per nanosecond, and a tick every millisecond.
    fn limited(limit: u64) -> RateLimit {
        let made = RateLimit::new(limit, 1_000_000);
        made.refill.store(1_000_000 * limit / RateLimit::NO_LIMIT, Ordering::Relaxed);
        made
    }

    /// Runs `ticks` ticks with handlers of `cost_ns`; returns how many are sampled.
    fn sampled(limit: &RateLimit, ticks: usize, cost_ns: u64) -> usize {
        let run = |_: &usize| {
            let admitted = limit.admits(1);
            if admitted {
                limit.spend(cost_ns, 0);
            }
            admitted
        };
        (0..ticks).filter(run).count()
    }

    #[test]
    fn cheap_handlers_are_let_be_and_dear_ones_held_to_the_limit() {
        assert_eq!(sampled(&limited(200), 10_000, 10_000), 10_000);
        // 2 % of a millisecond is a tenth of what each run takes.
        let found = sampled(&limited(200), 10_000, 200_000);
        assert!((900..1_100).contains(&found), "{found}");
        assert_eq!(sampled(&limited(RateLimit::NO_LIMIT), 10_000, 2_000_000), 10_000);
    }

    #[test]
    fn one_interruption_costs_few_samples_and_savings_are_bounded() {
        let limit = limited(200);
        assert!(limit.admits(100_000));
        assert_eq!(limit.tokens.load(Ordering::Relaxed), 20_000_000);
        limit.spend(1_000, 0);
        limit.spend(u64::MAX, 0);
        assert_eq!(limit.tokens.load(Ordering::Relaxed), 20_000_000 - 1_000 - 8 * 1_000);
        // But not for ever, if all runs become that long.
        (0..100).for_each(|_| limit.spend(50_000, 0));
        assert!(limit.average.load(Ordering::Relaxed) > 40_000);
    }

    #[test]
    fn being_preempted_is_not_the_handlers_time() {
        let limit = limited(200);
        limit.rate.store(RATE_NS, Ordering::Relaxed);
        limit.spend(1_000, 0);
        let tokens = limit.tokens.load(Ordering::Relaxed);
        // Preempted for most of that time.
        limit.spend(60_000_000, clock::thread_cpu_ns());
        let spent = tokens - limit.tokens.load(Ordering::Relaxed);
        assert!((0..=8_000).contains(&spent), "{spent}");
        for _ in 0..200 {
            limit.spend(60_000_000, clock::thread_cpu_ns());
        }
        assert!(limit.average.load(Ordering::Relaxed) < 100_000, "{limit:?}");
    }

    /// As a new process beside busy ones: its clock's rate is not known yet.
    #[test]
    fn being_preempted_never_becomes_the_usual() {
        let limit = limited(200);
        (0..50).for_each(|_| limit.spend(2_000_000, clock::thread_cpu_ns()));
        assert!(limit.average.load(Ordering::Relaxed) <= FIRST_RUN, "{limit:?}");
        limit.rate.store(RATE_NS, Ordering::Relaxed);
        (0..200).for_each(|_| limit.spend(2_000_000, clock::thread_cpu_ns()));
        assert!(limit.average.load(Ordering::Relaxed) < 100_000, "{limit:?}");
    }

    #[test]
    fn what_ended_threads_leave_is_taken_once() {
        let limit = limited(200);
        limit.inherit(3);
        limit.inherit(4);
        assert_eq!((limit.take_orphaned(), limit.take_orphaned()), (7, 0));
    }

    #[test]
    fn the_rate_of_the_clock_is_learnt() {
        let limit = RateLimit::new(200, 1_000_000);
        while limit.refill.load(Ordering::Relaxed) == 0 {
            assert!(limit.admits(1));
        }
        assert!(limit.tokens.load(Ordering::Relaxed) > 0);
        limit.set(1, 1_000_000);
        assert_eq!(limit.refill.load(Ordering::Relaxed), 0);
    }
}
