//! The weight of an ITIMER_PROF tick.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use platform::activity::is_filtered;
use platform::clock;

/// Accounts for the process's CPU time. The kernel merges expirations of ITIMER_PROF without reporting an overrun count
/// (setitimer(2)), so the CPU clock is read.
pub struct ProcessTime {
    period_ns: u64,
    counted_ns: AtomicU64,
    given_up: AtomicBool,
}

impl ProcessTime {
    /// For ticks with this period, from now on.
    pub fn starting_now(period_ns: u64) -> Self {
        Self {
            period_ns: period_ns.max(1),
            counted_ns: AtomicU64::new(clock::process_cpu_ns()),
            given_up: AtomicBool::new(false),
        }
    }

    /// Leaves ITIMER_PROF to the program: its signals are not ticks any more.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// Whether the timer belongs to the program.
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// The periods, rounded, since the last tick of any thread; at least one. Always one if system calls are filtered,
    /// since reading the clock is one.
    pub(crate) fn periods(&self) -> u32 {
        if is_filtered() {
            return 1;
        }
        let counted = self.counted_ns.load(Ordering::Relaxed);
        let passed = clock::process_cpu_ns().saturating_sub(counted);
        let periods = (passed.saturating_add(self.period_ns / 2) / self.period_ns).clamp(1, u32::MAX.into());
        let next = counted.wrapping_add(periods.wrapping_mul(self.period_ns));
        // Of two threads with simultaneous ticks, one accounts for all the time.
        match self.counted_ns.compare_exchange(counted, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => periods as u32,
            Err(_) => 1,
        }
    }
}
