//! Decides which allocations are sampled, by a Poisson process over the bytes that each thread allocates.
//!
//! The distance to the next sample is exponentially distributed. So a block of S bytes is sampled with probability
//! `1 - exp(-S/R)` whatever came before it, and readers divide by that.

use crate::distance;

/// The state of a thread, in thread-local storage.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Countdown {
    /// Bytes until the next sample: an allocation of at least this size takes the slow path.
    pub(super) left: u64,
    /// State of the random number generator; 0 before the first number.
    random: u64,
    /// The stack pointer of the call in progress; 0 if there is none.
    pub(super) inside: u64,
    /// The value of `left` before that call.
    pub(super) saved: u64,
    /// Number of calls nested in that one.
    pub(super) nested: u64,
    /// Number of recorded allocations.
    pub(super) serial: u64,
    _free: [u64; 2],
}

const _: () = assert!(size_of::<Countdown>() == 64);

handler::thread_block!(pub(super) fn own() -> Countdown, "selfwind_countdown");

impl Countdown {
    /// Whether a distance has been drawn.
    pub(super) fn is_begun(&self) -> bool {
        self.random != 0
    }

    /// Draws the distance to the next sample, `mean` bytes on average. For a mean of 1 it is 0, which samples everything.
    pub(super) fn draw(&mut self, mean: u64) {
        self.left = distance::draw(&mut self.random, mean);
    }
}
