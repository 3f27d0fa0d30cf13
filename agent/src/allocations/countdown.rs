//! Which allocations are sampled: one in so many bytes, by a Poisson process over the bytes of each thread.
//!
//! The distance to the next sample is exponentially distributed, so that a block of S bytes is sampled with the
//! probability `1 - exp(-S/R)`, whatever came before it; a reader divides by that.

use crate::distance;

/// What a thread keeps, in thread-local storage.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Countdown {
    /// Bytes until the next sample: an allocation of so many, or more, goes the slow way.
    pub(super) left: u64,
    /// State of the random numbers; 0 before the first.
    random: u64,
    /// The stack pointer of the call that is under way; 0 if there is none.
    pub(super) inside: u64,
    /// What `left` was before that.
    pub(super) saved: u64,
    /// Calls inside that one.
    pub(super) nested: u64,
    /// Allocations recorded.
    pub(super) serial: u64,
    _free: [u64; 2],
}

const _: () = assert!(size_of::<Countdown>() == 64);

handler::thread_block!(pub(super) fn own() -> Countdown, "selfwind_countdown");

impl Countdown {
    /// Whether there is a distance in `left`.
    pub(super) fn is_begun(&self) -> bool {
        self.random != 0
    }

    /// Draws the distance to the next sample, `mean` bytes on average; 0, which samples all, for a mean of 1.
    pub(super) fn draw(&mut self, mean: u64) {
        if self.random == 0 {
            self.random = distance::seed(core::ptr::from_ref(self) as u64);
        }
        self.left = distance::draw(&mut self.random, mean);
    }
}
