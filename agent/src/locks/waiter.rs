//! Thread-local state of a thread's lock waits.

use crate::distance;

/// The mean distance between samples, in ticks of waiting.
#[derive(Clone, Copy)]
pub(super) struct Mean {
    pub(super) requested: u64,
    /// How often it is doubled.
    pub(super) doubled: u32,
}

impl Mean {
    pub(super) fn ticks(self) -> u64 {
        self.requested.saturating_mul(1 << self.doubled)
    }
}

/// The calling thread's waits.
#[repr(C)]
pub(super) struct Waiter {
    /// Ticks of waiting until the next sample.
    left: u64,
    /// State of the random number generator; 0 before the first use.
    random: u64,
    /// Stack pointer of the current wait; 0 for none.
    inside: u64,
    /// Index of its entry in the table, plus one; 0 for none.
    entry: u64,
    /// How often the mean was doubled when `left` was drawn.
    doubled: u32,
    _free: [u32; 7],
}

const _: () = assert!(size_of::<Waiter>() == 64);

platform::thread_block!(pub(super) fn own() -> Waiter, "selfwind_waiter");

impl Waiter {
    /// Ticks of waiting until the next sample; the mean distance is now `mean`.
    pub(super) fn left(&mut self, mean: Mean) -> u64 {
        if self.random == 0 {
            self.draw(mean);
        }
        self.left
    }

    /// If a wait of this many ticks is sampled: how often the mean was doubled when that was drawn.
    pub(super) fn samples(&mut self, ticks: u64, mean: Mean) -> Option<u32> {
        match self.left.checked_sub(ticks).filter(|left| *left > 0) {
            Some(left) => {
                self.left = left;
                None
            }
            None => {
                let doubled = self.doubled;
                self.draw(mean);
                Some(doubled)
            }
        }
    }

    fn draw(&mut self, mean: Mean) {
        self.doubled = mean.doubled;
        self.left = distance::draw(&mut self.random, mean.ticks());
    }

    /// Begins a wait at this stack pointer, unless it is nested in another (in a signal handler). Returns the entry of
    /// a wait that was abandoned by a jump, which the caller must release first.
    pub(super) fn begin(&mut self, stack_pointer: u64) -> Result<Option<usize>, Nested> {
        if self.inside != 0 && stack_pointer < self.inside {
            return Err(Nested);
        }
        self.inside = stack_pointer;
        Ok(self.take_entry())
    }

    /// Stores the current wait's entry.
    pub(super) fn set_entry(&mut self, number: usize) {
        self.entry = number as u64 + 1;
    }

    /// Ends the wait that began at this stack pointer. Returns its entry, if it has one.
    pub(super) fn end(&mut self, stack_pointer: u64) -> Option<usize> {
        if self.inside != stack_pointer {
            return None;
        }
        self.inside = 0;
        self.take_entry()
    }

    /// Ends any current wait. Returns its entry.
    pub(super) fn abandon(&mut self) -> Option<usize> {
        self.inside = 0;
        self.take_entry()
    }

    fn take_entry(&mut self) -> Option<usize> {
        core::mem::take(&mut self.entry).checked_sub(1).map(|number| number as usize)
    }
}

/// The wait is nested in another of the same thread.
pub(super) struct Nested;
