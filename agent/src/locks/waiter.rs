//! What a thread keeps of its waits, in thread-local storage.

use crate::distance;

/// The calling thread's waits.
#[repr(C)]
pub(super) struct Waiter {
    /// Ticks of waiting until the next sample.
    left: u64,
    /// State of the random numbers; 0 before the first.
    random: u64,
    /// The stack pointer of the wait that is under way; 0 if there is none.
    inside: u64,
    /// The number of its place among what is waited for, plus one; 0 for none.
    place: u64,
    _free: [u64; 4],
}

const _: () = assert!(size_of::<Waiter>() == 64);

handler::thread_block!(pub(super) fn own() -> Waiter, "selfwind_waiter");

impl Waiter {
    /// Ticks of waiting until the next sample, which come `mean` apart on average.
    pub(super) fn left(&mut self, mean: u64) -> u64 {
        if self.random == 0 {
            self.random = distance::seed(core::ptr::from_ref(self) as u64);
            self.left = distance::draw(&mut self.random, mean);
        }
        self.left
    }

    /// Whether a wait of so many ticks is sampled.
    pub(super) fn samples(&mut self, ticks: u64, mean: u64) -> bool {
        match self.left.checked_sub(ticks).filter(|left| *left > 0) {
            Some(left) => {
                self.left = left;
                false
            }
            None => {
                self.left = distance::draw(&mut self.random, mean);
                true
            }
        }
    }

    /// A wait begins at this stack pointer, unless it is one of a signal handler inside another. The place of a wait that
    /// was left by a jump, which is to be given back first.
    pub(super) fn begin(&mut self, stack_pointer: u64) -> Result<Option<usize>, Nested> {
        if self.inside != 0 && stack_pointer < self.inside {
            return Err(Nested);
        }
        self.inside = stack_pointer;
        Ok(self.take_place())
    }

    /// The wait that has begun has this place.
    pub(super) fn set_place(&mut self, number: usize) {
        self.place = number as u64 + 1;
    }

    /// The wait that began at this stack pointer is over. Its place, if it has one.
    pub(super) fn end(&mut self, stack_pointer: u64) -> Option<usize> {
        if self.inside != stack_pointer {
            return None;
        }
        self.inside = 0;
        self.take_place()
    }

    /// Whatever wait was under way is over. Its place.
    pub(super) fn abandon(&mut self) -> Option<usize> {
        self.inside = 0;
        self.take_place()
    }

    fn take_place(&mut self) -> Option<usize> {
        core::mem::take(&mut self.place).checked_sub(1).map(|number| number as usize)
    }
}

/// The wait is inside another of its thread.
pub(super) struct Nested;
