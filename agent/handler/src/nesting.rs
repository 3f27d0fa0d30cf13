//! At most one sample of a thread at a time.
//!
//! The handler runs with all signals blocked, so on one thread it cannot interrupt itself. The guard is for
//! what shares a slot nevertheless: threads made by a bare `clone` without thread-local storage of their own.

use core::sync::atomic::{AtomicU32, Ordering};

/// Whether a sample of this thread is under way.
#[derive(Debug, Default)]
pub struct Nesting {
    inside: AtomicU32,
}

/// Proof that the caller is the only one inside. Leaves when dropped.
#[derive(Debug)]
pub struct Entered<'a> {
    nesting: &'a Nesting,
}

impl Nesting {
    /// Nobody inside.
    pub const fn new() -> Self {
        Self { inside: AtomicU32::new(0) }
    }

    /// Enters, unless a sample is under way already.
    pub fn enter(&self) -> Option<Entered<'_>> {
        // Pairs with the release in `drop`, for the bare threads that share a slot.
        let is_first = self.inside.swap(1, Ordering::Acquire) == 0;
        // Not before it is known: one that is dropped leaves.
        is_first.then(|| Entered { nesting: self })
    }

    /// Goes on as the one inside, which is gone without having left.
    pub(crate) fn take_over(&self) -> Entered<'_> {
        Entered { nesting: self }
    }

    /// Forgets a sample that a fork has cut off from its thread.
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
}
