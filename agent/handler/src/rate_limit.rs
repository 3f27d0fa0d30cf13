//! The limit of what sampling may cost, as a share of the program's CPU time.
//!
//! Every tick brings its share of the CPU time that it stands for, every sample takes what its handler took. While
//! nothing is left no stack is walked: the weight of such a tick goes to the next sample of its thread, so that the
//! profile weighs what it should and has fewer samples; what a thread leaves at its end goes to the next sample of any.
//! The account is the process's. A run that takes much longer than others was most likely preempted, on a machine that is
//! busy: of such a one the thread's CPU clock says what it took.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::activity::is_filtered;
use crate::clock::{self, SECOND_NS};

/// From so many typical runs on, one is looked at more closely.
const LONG_RUN: u64 = 4;
/// A run counts as no more than so many typical ones.
const LONGEST_RUN: u64 = 8;
/// Nanoseconds for which the clock's rate is kept.
const RATE_NS: u64 = 1 << 16;
/// The share by which a run changes what is typical.
const INERTIA: u64 = 16;
/// Ticks of the clock that the first run may take.
const FIRST_RUN: u64 = 1 << 18;
/// Ticks of the clock from which its rate can be told.
const BASE_LINE: u64 = 1 << 26;
/// Parts of the base line by which the two clocks may be read apart.
const PRECISION: u64 = 64;

/// Decides whether there is time for a sample.
#[derive(Debug)]
pub struct RateLimit {
    /// Ticks and nanoseconds of the same moment.
    began: (u64, u64),
    limit: AtomicU64,
    period_ns: AtomicU64,
    /// Ticks of the clock that a period of the source brings; 0 while unknown.
    refill: AtomicU64,
    /// Ticks of the clock that a run typically takes; 0 while unknown.
    average: AtomicU64,
    tokens: AtomicI64,
    /// Ticks of the clock in [`RATE_NS`]; 0 while unknown.
    rate: AtomicU64,
    /// Periods that threads have left at their end.
    orphaned: AtomicU32,
}

impl RateLimit {
    /// A limit that is none.
    pub const NO_LIMIT: u64 = 10_000;

    /// Keeps handlers below `limit` hundredths of a percent of the CPU time, of which a tick's weight counts periods.
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

    /// True if ticks may have to be left out.
    pub(crate) fn is_set(&self) -> bool {
        self.limit.load(Ordering::Relaxed) < Self::NO_LIMIT
    }

    /// Leaves the periods of a thread that has ended to the next sample of any.
    pub fn inherit(&self, periods: u32) {
        if periods > 0 {
            self.orphaned.fetch_add(periods, Ordering::Relaxed);
        }
    }

    /// The periods that threads have left.
    pub fn take_orphaned(&self) -> u32 {
        if self.orphaned.load(Ordering::Relaxed) == 0 { 0 } else { self.orphaned.swap(0, Ordering::Relaxed) }
    }

    /// Another limit and period, from now on.
    pub fn set(&self, limit: u64, period_ns: u64) {
        self.limit.store(limit, Ordering::Relaxed);
        self.period_ns.store(period_ns, Ordering::Relaxed);
        self.refill.store(0, Ordering::Relaxed);
    }

    /// True if a tick that stands for so many periods may be sampled.
    pub(crate) fn admits(&self, periods: u32) -> bool {
        if !self.is_set() {
            return true;
        }
        let refill = match self.refill.load(Ordering::Relaxed) {
            0 => self.learn(),
            known => known,
        };
        if refill == 0 {
            return true;
        }
        // No more is saved than a second brings.
        let most =
            as_signed(refill.saturating_mul(SECOND_NS / self.period_ns.load(Ordering::Relaxed).max(1)));
        let more = as_signed(refill.saturating_mul(periods.into()));
        let tokens = self.tokens.fetch_add(more, Ordering::Relaxed).saturating_add(more);
        if tokens > most {
            self.tokens.fetch_sub(tokens - most, Ordering::Relaxed);
        }
        tokens >= 0
    }

    /// A handler took so many ticks of the clock for a sample, from the moment on when its thread's CPU clock said
    /// `cpu_ns`; 0 if that was not asked.
    pub(crate) fn spend(&self, ticks: u64, cpu_ns: u64) {
        let average = match self.average.load(Ordering::Relaxed) {
            0 => ticks.clamp(1, FIRST_RUN),
            known => known,
        };
        let ticks = match self.rate.load(Ordering::Relaxed) {
            rate if rate != 0
                && cpu_ns != 0
                && ticks > average.saturating_mul(LONG_RUN)
                && !is_filtered() =>
            {
                let taken = clock::thread_cpu_ns().saturating_sub(cpu_ns);
                ticks.min(taken.saturating_mul(rate) / RATE_NS)
            }
            _ => ticks,
        };
        let ticks = ticks.min(average.saturating_mul(LONGEST_RUN));
        let next = (average * (INERTIA - 1) + ticks).div_ceil(INERTIA);
        self.average.store(next, Ordering::Relaxed);
        self.tokens.fetch_sub(as_signed(ticks), Ordering::Relaxed);
    }

    /// Finds out what a period brings, once enough time has passed to tell the clock's rate. One system call.
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
            // Interrupted in between.
            return 0;
        }
        let (limit, period_ns) = (self.limit.load(Ordering::Relaxed), self.period_ns.load(Ordering::Relaxed));
        let in_ticks = |ns: u128| (ns * u128::from(passed) / u128::from(passed_ns)) as u64;
        let share = in_ticks(u128::from(period_ns) * u128::from(limit) / u128::from(Self::NO_LIMIT)).max(1);
        // What the first runs cost, with cold caches, is not held against the others.
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

    /// A clock of one tick per nanosecond, with ticks every millisecond.
    fn limited(limit: u64) -> RateLimit {
        let made = RateLimit::new(limit, 1_000_000);
        made.refill.store(1_000_000 * limit / RateLimit::NO_LIMIT, Ordering::Relaxed);
        made
    }

    /// Of `ticks` ticks with handlers of `cost_ns`, those that are sampled.
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
        // 2 % of a millisecond is a tenth of what each takes.
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
        // Not for ever, should all runs get so long.
        (0..100).for_each(|_| limit.spend(50_000, 0));
        assert!(limit.average.load(Ordering::Relaxed) > 40_000);
    }

    #[test]
    fn being_preempted_is_not_the_handlers_time() {
        let limit = limited(200);
        limit.rate.store(RATE_NS, Ordering::Relaxed);
        limit.spend(1_000, 0);
        let tokens = limit.tokens.load(Ordering::Relaxed);
        // Off the processor for most of the time that passed.
        limit.spend(60_000_000, clock::thread_cpu_ns());
        let spent = tokens - limit.tokens.load(Ordering::Relaxed);
        assert!((0..=8_000).contains(&spent), "{spent}");
        for _ in 0..200 {
            limit.spend(60_000_000, clock::thread_cpu_ns());
        }
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
