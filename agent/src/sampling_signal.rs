//! The sampling signal of this process, chosen before it is taken over.

use core::sync::atomic::{AtomicI32, Ordering};

static SIGNAL: AtomicI32 = AtomicI32::new(libc::SIGPROF);

/// The sampling signal.
pub(crate) fn get() -> i32 {
    SIGNAL.load(Ordering::Relaxed)
}

/// For sampling by timers.
pub(crate) fn set_for_timers() {
    SIGNAL.store(libc::SIGPROF, Ordering::Relaxed);
}

/// For sampling by perf events (perf_event_open(2), `sigtrap`).
pub(crate) fn set_for_events() {
    SIGNAL.store(libc::SIGTRAP, Ordering::Relaxed);
}
