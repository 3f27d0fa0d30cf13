//! A lock that is held with every signal blocked.
//!
//! Interposed functions such as `sigaction` may be called from a signal handler of the program, at any
//! instruction; a handler that interrupted the holder on the same thread would wait for ever. The sampling
//! handler itself takes no lock at all.

use core::sync::atomic::{AtomicU32, Ordering};

use handler::sys;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// A mutual exclusion for code outside the handler.
pub(crate) struct Lock {
    word: AtomicU32,
}

/// Releases the lock and restores the signal mask when dropped.
pub(crate) struct Held<'a> {
    lock: &'a Lock,
    mask: u64,
}

impl Lock {
    pub(crate) const fn new() -> Lock {
        Lock { word: AtomicU32::new(FREE) }
    }

    /// Blocks all signals, then waits for the lock.
    pub(crate) fn hold(&self) -> Held<'_> {
        let mask = sys::set_signal_mask(!0);
        self.acquire();
        Held { lock: self, mask }
    }

    /// Waits for the lock. Every signal is blocked already, and stays so until [`Lock::release`].
    pub(crate) fn acquire(&self) {
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // Pairs with the release in `drop`.
            while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
                sys::futex_wait(&self.word, CONTENDED);
            }
        }
    }

    /// Gives the lock back.
    pub(crate) fn release(&self) {
        // Pairs with the acquires in `acquire`.
        if self.word.swap(FREE, Ordering::Release) == CONTENDED {
            sys::futex_wake_one(self.word.as_ptr());
        }
    }
}

impl Held<'_> {
    /// Lets `signal` through although the lock is held, unless it was blocked before.
    pub(crate) fn let_through(&self, signal: i32) {
        let bit = 1 << (signal - 1);
        if self.mask & bit == 0 {
            sys::set_signal_mask(!bit);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.lock.release();
        sys::set_signal_mask(self.mask);
    }
}

/// All signals blocked, until dropped.
pub(crate) struct Masked {
    mask: u64,
}

impl Masked {
    pub(crate) fn new() -> Masked {
        Masked { mask: sys::set_signal_mask(!0) }
    }

    /// Leaves `signal` blocked at the end.
    pub(crate) fn mask(&mut self, signal: i32) {
        self.mask |= 1 << (signal - 1);
    }

    /// Leaves `signal` unblocked at the end; says whether it was blocked at the beginning.
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
