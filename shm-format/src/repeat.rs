//! The repeat record: an allocation whose stack is in the durable log.
//!
//! It belongs to no chunk and no chain: whoever has read the log can decode it. So the same few thousand stacks of a
//! program are written and decoded once.

use crate::control::Loss;
use crate::pool::Pool;
use crate::record::RecordKind;
use crate::writer::{Committed, ThreadCursor};

/// Set in the word of an [`AlikeAllocations`].
const ALIKE: u64 = 1 << 63;
const STACK_BITS: u32 = 27;
const STACK: u64 = (1 << STACK_BITS) - 1;
/// First bit of the recording, above the size.
const RECORDING_AT: u32 = STACK_BITS + 32;

/// All allocations of one stack and size in one recording, as a word: `1:1 | recording:4 | size:32 | stack:27`. It is also
/// the id of their blocks.
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

/// An allocation with a stack of the durable log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// One of several that are not told apart: the payload is their word.
    Alike(AlikeAllocations),
    /// One with an id of its own: the payload is the number of its stack, and its nonce.
    Single {
        /// The number of the stack.
        stack: u32,
        /// The nonce, as in a stack record.
        nonce: u64,
    },
}

impl Repeat {
    /// The source of the recorded samples: allocations.
    pub const SOURCE: u8 = 4;
    /// Maximum depth of a stack in the durable log.
    pub const DEPTH: usize = 128;

    /// Parses a payload; `None` if no writer produces it.
    #[must_use]
    #[inline]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let (words, []) = payload.as_chunks::<8>() else { return None };
        match *words {
            [word] => AlikeAllocations::from_word(u64::from_le_bytes(word)).map(Self::Alike),
            [stack, nonce] => {
                let stack = u32::try_from(u64::from_le_bytes(stack)).ok()?;
                let is_number = stack != 0 && stack <= AlikeAllocations::LAST_STACK;
                is_number.then_some(Self::Single { stack, nonce: u64::from_le_bytes(nonce) })
            }
            _ => None,
        }
    }

    /// The number of the stack.
    #[must_use]
    pub fn stack(self) -> u32 {
        match self {
            Self::Alike(alike) => alike.stack(),
            Self::Single { stack, .. } => stack,
        }
    }
}

impl ThreadCursor {
    /// Writes an allocation whose stack is in the log already.
    ///
    /// # Errors
    /// As for [`reserve`](Self::reserve).
    #[inline]
    pub fn repeat<P: Pool>(
        &self,
        pool: &P,
        repeat: Repeat,
        now: impl Fn() -> u64,
    ) -> Result<Committed, Loss> {
        let (first, second) = match repeat {
            Repeat::Alike(alike) => (alike.word(), None),
            Repeat::Single { stack, nonce } => (stack.into(), Some(nonce)),
        };
        let mut record = self.reserve(pool, RecordKind::Repeat, 1 + usize::from(second.is_some()), now)?;
        record.set(0, first);
        if let Some(nonce) = second {
            record.set(1, nonce);
        }
        Ok(record.commit())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn what_no_writer_writes_is_none() {
        let payload = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let parse = |words: &[u64]| Repeat::parse(&payload(words));
        assert_eq!(parse(&[17, 99]), Some(Repeat::Single { stack: 17, nonce: 99 }));
        for (stack, size) in [(1, 0), (5, 64), (AlikeAllocations::LAST_STACK, u32::MAX)] {
            let alike = [0, 1, 15].map(|recording| AlikeAllocations::new(recording, size, stack));
            for alike in alike {
                assert_eq!((alike.stack(), alike.size()), (stack, size.into()));
                assert_eq!(parse(&[alike.word()]), Some(Repeat::Alike(alike)));
            }
            assert!(alike[0] != alike[1] && alike[1] != alike[2]);
            assert_eq!(AlikeAllocations::new(16, size, stack), alike[0]);
        }
        for words in [
            &[][..],
            &[0],
            &[7],
            &[ALIKE],
            &[ALIKE | 1, 0],
            &[0, 1],
            &[1 << 27, 1],
            &[1 << 32 | 1, 1],
            &[1, 2, 3],
        ] {
            assert_eq!(parse(words), None, "{words:x?}");
        }
        assert_eq!(Repeat::parse(&payload(&[17, 99])[1..]), None);
    }
}
