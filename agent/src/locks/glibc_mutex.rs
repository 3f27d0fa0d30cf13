//! What can be seen of a mutex of glibc (sysdeps/nptl/bits/struct_mutex.h; initializers in programs have fixed it).

use core::sync::atomic::{AtomicU32, Ordering};

/// 1 unless the C library is glibc.
pub(super) static IS_FOREIGN: AtomicU32 = AtomicU32::new(1);

/// Where its kind is.
pub(super) const KIND: usize = 16;
/// The kinds that are robust, or inherit or protect priorities.
pub(super) const SPECIAL: u32 = 16 | 32 | 64;

/// The C library is glibc.
pub(super) fn is_known() {
    IS_FOREIGN.store(0, Ordering::Relaxed);
}

/// What to do with a mutex that is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Approach {
    /// Nobody has it: no wait.
    Take,
    /// An attempt tells whether it has to be waited for, and does nothing else.
    Attempt,
    /// Somebody has it.
    Wait,
}

/// How to get the mutex at `address`.
///
/// # Safety
/// It is a mutex.
pub(super) unsafe fn approach(address: u64) -> Approach {
    if IS_FOREIGN.load(Ordering::Relaxed) != 0 {
        return Approach::Attempt;
    }
    // SAFETY: the caller's promise; the words of glibc's mutex. Other threads change the first by atomic operations.
    let (lock, kind) = unsafe {
        let lock = (address as *const AtomicU32).as_ref().map_or(0, |lock| lock.load(Ordering::Relaxed));
        (lock, ((address as usize + KIND) as *const u32).read_volatile())
    };
    match (lock, kind & SPECIAL) {
        (0, _) => Approach::Take,
        (_, 0) => Approach::Attempt,
        _ => Approach::Wait,
    }
}
