//! The layout of a glibc mutex (sysdeps/nptl/bits/struct_mutex.h; static initializers in programs have fixed it).

use core::sync::atomic::{AtomicU32, Ordering};

/// 1 unless the C library is glibc.
pub(super) static IS_FOREIGN: AtomicU32 = AtomicU32::new(1);

/// Offset of its kind.
pub(super) const KIND: usize = 16;
/// Kinds that are robust, or inherit or protect priorities.
pub(super) const SPECIAL: u32 = 16 | 32 | 64;

/// Called if the C library is glibc.
pub(super) fn is_known() {
    IS_FOREIGN.store(0, Ordering::Relaxed);
}

/// How to lock a mutex.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Approach {
    /// It is free: call the real function without watching.
    Take,
    /// Call trylock first, which has no side effect if the mutex is taken.
    Attempt,
    /// Another thread has it.
    Wait,
}

/// How to lock the mutex at `address`.
///
/// # Safety
/// It must be a mutex.
pub(super) unsafe fn approach(address: u64) -> Approach {
    if IS_FOREIGN.load(Ordering::Relaxed) != 0 {
        return Approach::Attempt;
    }
    // SAFETY: the caller promises a mutex, whose words these are. Other threads modify the first one atomically.
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
