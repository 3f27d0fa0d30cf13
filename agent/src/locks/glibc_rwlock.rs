//! The layout of a glibc rwlock (nptl/pthread_rwlock_common.c since 2.25; relied on from 2.30 on, like the attempts).

use core::sync::atomic::{AtomicU32, Ordering};

/// [`WRITTEN`] unless the C library is a glibc with this layout.
pub(super) static IS_FOREIGN: AtomicU32 = AtomicU32::new(WRITTEN);

/// Bits of its first word: it is written, or a writer has it. A reader need not wait if neither is set.
pub(super) const WRITTEN: u32 = 1 | 2;

/// Called if the C library is such a glibc.
pub(super) fn is_known() {
    IS_FOREIGN.store(0, Ordering::Relaxed);
}
