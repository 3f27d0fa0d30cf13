//! The stack that a thread appended to the durable log last: the next one is written as the difference.
//!
//! Stacks that come to recur one after the other have most of their outer frames in common. What must never happen here: a base
//! that is not in the log before the stack that names it.

use shm_format::Repeat;

/// A stack that is in the log. All zero if there is none.
pub(crate) struct AppendedStack {
    /// Its number; 0 for none.
    number: u32,
    depth: usize,
    /// Leaf first.
    frames: [u64; Repeat::DEPTH],
}

impl AppendedStack {
    /// Forgets it, for a new log.
    pub(crate) fn forget(&mut self) {
        self.number = 0;
    }

    /// Its number, and how many outermost frames it shares with `frames`. Both are 0 if it shares none.
    pub(crate) fn base_of(&self, frames: &[u64]) -> (u32, usize) {
        let own = if self.number == 0 { &[] } else { self.frames.get(..self.depth).unwrap_or(&[]) };
        let pairs = own.iter().rev().zip(frames.iter().rev());
        match pairs.take_while(|(own, frame)| own == frame).count() {
            0 => (0, 0),
            shared => (self.number, shared),
        }
    }

    /// Notes that the stack of this number, at most [`Repeat::DEPTH`] deep, is in the log.
    pub(crate) fn set(&mut self, number: u32, frames: &[u64]) {
        if let Some(own) = self.frames.get_mut(..frames.len()) {
            own.copy_from_slice(frames);
            (self.number, self.depth) = (number, frames.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_shares_the_outermost_frames_of_the_one_before() {
        let mut last = AppendedStack { number: 0, depth: 0, frames: [0; Repeat::DEPTH] };
        assert_eq!(last.base_of(&[0, 0]), (0, 0));
        last.set(7, &[5, 3, 2, 1]);
        for (frames, shared) in [(&[9, 5, 3, 2, 1][..], 4), (&[5, 3, 2, 1], 4), (&[6, 2, 1], 2), (&[1], 1)] {
            assert_eq!(last.base_of(frames), (7, shared), "{frames:?}");
        }
        assert_eq!(last.base_of(&[5, 3, 2, 4]), (0, 0));
        last.forget();
        assert_eq!(last.base_of(&[5, 3, 2, 1]), (0, 0));
    }
}
