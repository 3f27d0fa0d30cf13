//! What a tick of ITIMER_PROF stands for.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::activity::is_filtered;
use crate::clock;

/// How much of the process's CPU time its ticks have stood for so far. The kernel merges expiries of ITIMER_PROF and
/// does not say how many (setitimer(2) has no overrun count), so the clock is asked.
pub struct ProcessTime {
    period_ns: u64,
    counted_ns: AtomicU64,
    given_up: AtomicBool,
}

impl ProcessTime {
    /// Ticks of this period, from now on.
    pub fn starting_now(period_ns: u64) -> Self {
        Self {
            period_ns: period_ns.max(1),
            counted_ns: AtomicU64::new(clock::process_cpu_ns()),
            given_up: AtomicBool::new(false),
        }
    }

    /// Leaves ITIMER_PROF to the program: its signals are not ours any more.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// True if the timer is the program's.
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// The periods, rounded, that have passed since the last tick of any thread; at least one. One where system calls
    /// are filtered, since the clock is one.
    pub(crate) fn periods(&self) -> u32 {
        if is_filtered() {
            return 1;
        }
        let counted = self.counted_ns.load(Ordering::Relaxed);
        let passed = clock::process_cpu_ns().saturating_sub(counted);
        let periods = (passed.saturating_add(self.period_ns / 2) / self.period_ns).clamp(1, u32::MAX.into());
        let next = counted.wrapping_add(periods.wrapping_mul(self.period_ns));
        // Of two threads with a tick at once, one stands for all that has passed.
        match self.counted_ns.compare_exchange(counted, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => periods as u32,
            Err(_) => 1,
        }
    }
}
