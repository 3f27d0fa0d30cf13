//! The time namespace of this process.

use core::sync::atomic::{AtomicI64, Ordering};

use shm_format::TimeNamespace;

use crate::kernel;

static MONOTONIC_NS: AtomicI64 = AtomicI64::new(0);

/// Asks the kernel for it. A new process may be in another one.
pub(crate) fn read() -> TimeNamespace {
    let mut buffer = [0u8; 256];
    let text = kernel::read_file(c"/proc/self/timens_offsets", &mut buffer).unwrap_or(b"");
    let namespace = TimeNamespace::parse(text);
    MONOTONIC_NS.store(namespace.monotonic_ns, Ordering::Relaxed);
    namespace
}

/// A reading of CLOCK_MONOTONIC, in nanoseconds, as in the initial namespace.
pub(crate) fn initial_monotonic(ns: u64) -> u64 {
    let monotonic_ns = MONOTONIC_NS.load(Ordering::Relaxed);
    TimeNamespace { monotonic_ns, ..TimeNamespace::default() }.initial_monotonic(ns)
}
