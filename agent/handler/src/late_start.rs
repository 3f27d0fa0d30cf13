//! How discovered threads start: the timer that they get, and from when on their CPU time counts.

use core::sync::atomic::{AtomicU64, Ordering};

use platform::clock;

/// Parameters of discovered threads.
#[derive(Debug)]
pub struct LateStart {
    signal: i32,
    period_ns: AtomicU64,
    /// CPU time of the process when recording began: an upper bound for any thread at that time.
    began_ns: AtomicU64,
}

impl LateStart {
    /// Timers with this signal and period; a period of 0 means none.
    pub fn new(signal: i32, period_ns: u64) -> Self {
        let began_ns = AtomicU64::new(clock::process_cpu_ns());
        Self { signal, period_ns: AtomicU64::new(period_ns), began_ns }
    }

    /// Changes the period; CPU time counts from now on.
    pub fn restart(&self, period_ns: u64) {
        self.period_ns.store(period_ns, Ordering::Relaxed);
        self.began_ns.store(clock::process_cpu_ns(), Ordering::Relaxed);
    }

    pub(crate) fn signal(&self) -> i32 {
        self.signal
    }

    pub(crate) fn period_ns(&self) -> u64 {
        self.period_ns.load(Ordering::Relaxed)
    }

    /// CPU time of the calling thread that counts, in nanoseconds. Makes two system calls.
    pub(crate) fn used_ns(&self) -> u64 {
        let since = clock::process_cpu_ns().saturating_sub(self.began_ns.load(Ordering::Relaxed));
        clock::thread_cpu_ns().min(since)
    }
}
