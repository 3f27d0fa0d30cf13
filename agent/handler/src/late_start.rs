//! How a thread starts that nobody has registered: with which timer, and from when on its CPU time counts.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::clock;

/// What such threads get.
#[derive(Debug)]
pub struct LateStart {
    signal: i32,
    period_ns: AtomicU64,
    /// The process's CPU time when recording began: no thread has used more since.
    began_ns: AtomicU64,
}

impl LateStart {
    /// Timers of this signal and period; for a period of 0 nobody gets one.
    pub fn new(signal: i32, period_ns: u64) -> Self {
        let began_ns = AtomicU64::new(clock::process_cpu_ns());
        Self { signal, period_ns: AtomicU64::new(period_ns), began_ns }
    }

    /// Another period, and CPU time that counts, from now on.
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

    /// Nanoseconds of the calling thread's CPU time that count. Two system calls.
    pub(crate) fn used_ns(&self) -> u64 {
        let since = clock::process_cpu_ns().saturating_sub(self.began_ns.load(Ordering::Relaxed));
        clock::thread_cpu_ns().min(since)
    }
}
