//! The nesting guard: at most one sample or recorded call of a thread at a time.
//!
//! The handler runs with all signals blocked, so it cannot interrupt itself on its own thread. But it can interrupt a
//! recorded call, and so can a signal handler of the program that makes one; and threads made by a bare `clone` without
//! thread-local storage of their own share a slot. One word is both the lock and the owner's stack pointer: a signal
//! handler that leaves by longjmp(3) never releases it, and the stack pointer shows that the owner is gone.

use core::sync::atomic::{AtomicU64, Ordering};

/// The owner is not a recorded call, so its stack pointer does not matter.
const NO_CALL: u64 = 1;

/// Whether a sample or a call of this thread is under way.
#[derive(Debug, Default)]
pub struct Nesting {
    /// The owner's stack pointer, or [`NO_CALL`]; 0 if the guard is free.
    inside: AtomicU64,
}

/// Proof that the caller owns the guard. Releases it when dropped.
#[derive(Debug)]
pub struct Entered<'a> {
    nesting: &'a Nesting,
}

impl Nesting {
    /// A free guard.
    pub const fn new() -> Self {
        Self { inside: AtomicU64::new(0) }
    }

    /// Takes the guard if it is free.
    pub fn enter(&self) -> Option<Entered<'_>> {
        self.replace(0, NO_CALL)
    }

    /// Takes the guard for a frame at `stack_pointer`, if it is free.
    #[inline]
    pub(crate) fn enter_at(&self, stack_pointer: u64) -> Option<Entered<'_>> {
        self.replace(0, stack_pointer)
    }

    /// The owner's stack pointer; 0 if there is none or it is unknown.
    pub(crate) fn owner(&self) -> u64 {
        let inside = self.inside.load(Ordering::Relaxed);
        if inside == NO_CALL { 0 } else { inside }
    }

    /// Takes the guard over from the owner at `before`, which is gone without releasing it.
    pub(crate) fn replace(&self, before: u64, stack_pointer: u64) -> Option<Entered<'_>> {
        // Pairs with the release in `drop`, for the bare threads that share a slot.
        let entered =
            self.inside.compare_exchange(before, stack_pointer, Ordering::Acquire, Ordering::Relaxed);
        // Not `then_some`: that would build an `Entered` even on failure, and dropping it releases the guard.
        entered.is_ok().then(|| Entered { nesting: self })
    }

    /// Releases the guard of a sample that a fork has separated from its thread.
    pub fn reset(&self) {
        self.inside.store(0, Ordering::Relaxed);
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.nesting.inside.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_entry_is_refused_until_the_first_leaves() {
        let nesting = Nesting::new();
        let first = nesting.enter();
        assert!(first.is_some());
        assert!(nesting.enter().is_none());
        assert!(nesting.enter().is_none(), "a refusal changes nothing");
        drop(first);
        assert!(nesting.enter().is_some());
    }

    #[test]
    fn an_owner_that_is_gone_is_replaced_once() {
        let nesting = Nesting::new();
        let left = nesting.enter_at(0x7000);
        core::mem::forget(left);
        assert_eq!(nesting.owner(), 0x7000);
        assert!(nesting.replace(0x6000, 0x8000).is_none());
        let entered = nesting.replace(0x7000, 0x8000);
        assert!(entered.is_some() && nesting.enter_at(0x9000).is_none());
        drop(entered);
        let _sample = nesting.enter();
        assert_eq!(nesting.owner(), 0);
    }
}
