//! The signal that brings samples to this process, decided before it is taken over.

use core::sync::atomic::{AtomicI32, Ordering};

static SIGNAL: AtomicI32 = AtomicI32::new(libc::SIGPROF);

/// The sampling signal.
pub(crate) fn get() -> i32 {
    SIGNAL.load(Ordering::Relaxed)
}

/// Timers ask for samples.
pub(crate) fn set_for_timers() {
    SIGNAL.store(libc::SIGPROF, Ordering::Relaxed);
}

/// The kernel's events do (perf_event_open(2), `sigtrap`).
pub(crate) fn set_for_events() {
    SIGNAL.store(libc::SIGTRAP, Ordering::Relaxed);
}
