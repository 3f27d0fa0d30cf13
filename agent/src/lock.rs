//! A lock that is held with all signals blocked.
//!
//! A signal handler of the program may call interposed functions such as `sigaction` at any instruction; if it
//! interrupted the holder on the same thread, it would deadlock. The sampling handler itself must take no lock at all.

use core::sync::atomic::{AtomicU32, Ordering};

use platform::sys;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// A mutex for code outside the handler.
pub(crate) struct Lock {
    word: AtomicU32,
}

/// Releases the lock and restores the signal mask when dropped.
pub(crate) struct LockGuard<'a> {
    lock: &'a Lock,
    mask: u64,
}

impl Lock {
    pub(crate) const fn new() -> Lock {
        Lock { word: AtomicU32::new(FREE) }
    }

    /// Blocks all signals, then waits for the lock.
    pub(crate) fn hold(&self) -> LockGuard<'_> {
        let mask = sys::set_signal_mask(!0);
        self.acquire();
        LockGuard { lock: self, mask }
    }

    /// Waits for the lock. All signals must be blocked already, and stay so until [`Lock::release`].
    pub(crate) fn acquire(&self) {
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // Acquire: pairs with the release in `release`.
            while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
                sys::futex_wait(&self.word, CONTENDED);
            }
        }
    }

    /// Releases the lock.
    pub(crate) fn release(&self) {
        // Release: pairs with the acquire in `acquire`.
        if self.word.swap(FREE, Ordering::Release) == CONTENDED {
            sys::futex_wake_one(self.word.as_ptr());
        }
    }
}

impl LockGuard<'_> {
    /// Unblocks `signal` although the lock is held, unless it was blocked before.
    pub(crate) fn let_through(&self, signal: i32) {
        let bit = 1 << (signal - 1);
        if self.mask & bit == 0 {
            sys::set_signal_mask(!bit);
        }
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        self.lock.release();
        sys::set_signal_mask(self.mask);
    }
}

/// Blocks all signals until dropped.
pub(crate) struct Masked {
    mask: u64,
}

impl Masked {
    pub(crate) fn new() -> Masked {
        Masked { mask: sys::set_signal_mask(!0) }
    }

    /// Makes `signal` blocked after the drop.
    pub(crate) fn mask(&mut self, signal: i32) {
        self.mask |= 1 << (signal - 1);
    }

    /// Makes `signal` unblocked after the drop; returns whether it was blocked before.
    pub(crate) fn unmask(&mut self, signal: i32) -> bool {
        let bit = 1 << (signal - 1);
        let was_blocked = self.mask & bit != 0;
        self.mask &= !bit;
        was_blocked
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        sys::set_signal_mask(self.mask);
    }
}
