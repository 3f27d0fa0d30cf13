//! Allocations of one stack and size, which are not told apart.

/// Set in the word of an [`AlikeAllocations`].
const ALIKE: u64 = 1 << 63;
const STACK_BITS: u32 = 27;
const STACK: u64 = (1 << STACK_BITS) - 1;
/// First bit of the recording, above the size.
const RECORDING_AT: u32 = STACK_BITS + 32;

/// All allocations of one stack and size in one recording, which are not told apart, as a word:
/// `1:1 | recording:4 | size:32 | stack:27`. It is also the id of their blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AlikeAllocations(u64);

impl AlikeAllocations {
    /// The highest number of a stack.
    pub const LAST_STACK: u32 = STACK as u32;

    /// Those of `size` bytes with the stack of this number, in the recording of this number, of which the low 4 bits are used.
    #[must_use]
    pub const fn new(recording: u64, size: u32, stack: u32) -> Self {
        Self(ALIKE | recording << RECORDING_AT & !ALIKE | (size as u64) << STACK_BITS | stack as u64 & STACK)
    }

    /// Those of this word; `None` if it is something else.
    #[must_use]
    #[inline]
    pub const fn from_word(word: u64) -> Option<Self> {
        if word & ALIKE != 0 && word & STACK != 0 { Some(Self(word)) } else { None }
    }

    /// The word.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The same of another recording.
    #[must_use]
    pub const fn of_recording(self, recording: u64) -> Self {
        Self::new(recording, self.size() as u32, self.stack())
    }

    /// Whether they are of the recording of this number, of which the low 4 bits are used.
    #[must_use]
    pub const fn is_of_recording(self, recording: u64) -> bool {
        self.0 >> RECORDING_AT == (ALIKE | recording << RECORDING_AT) >> RECORDING_AT
    }

    /// The number of their stack in the durable log.
    #[must_use]
    pub const fn stack(self) -> u32 {
        (self.0 & STACK) as u32
    }

    /// The size of each in bytes.
    #[must_use]
    pub const fn size(self) -> u64 {
        self.0 >> STACK_BITS & u32::MAX as u64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_recording_size_and_stack() {
        for (stack, size) in [(1, 0), (5, 64), (AlikeAllocations::LAST_STACK, u32::MAX)] {
            let alike = [0, 1, 15].map(|recording| AlikeAllocations::new(recording, size, stack));
            for alike in alike {
                assert_eq!((alike.stack(), alike.size()), (stack, size.into()));
                assert_eq!(AlikeAllocations::from_word(alike.word()), Some(alike));
                assert_eq!(alike.of_recording(1), AlikeAllocations::new(1, size, stack));
            }
            assert_eq!([0, 1, 15, 16].map(|it| alike[0].is_of_recording(it)), [true, false, false, true]);
            assert!(alike[0] != alike[1] && alike[1] != alike[2]);
            assert_eq!(AlikeAllocations::new(16, size, stack), alike[0]);
        }
        for word in [0, 7, ALIKE] {
            assert_eq!(AlikeAllocations::from_word(word), None, "{word:x}");
        }
    }
}
