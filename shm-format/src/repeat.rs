//! The repeat record: an allocation whose stack is in the durable log.
//!
//! It belongs to no chunk and no chain: whoever has read the log can decode it. So the same few thousand stacks of a
//! program are written and decoded once.

use crate::alike_allocations::AlikeAllocations;
use crate::control::Loss;
use crate::pool::Pool;
use crate::record::RecordKind;
use crate::writer::{Committed, ThreadCursor};

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
        for (stack, size) in [(1, 0), (17, 64), (AlikeAllocations::LAST_STACK, u32::MAX)] {
            assert_eq!(parse(&[stack.into(), 99]), Some(Repeat::Single { stack, nonce: 99 }));
            let alike = AlikeAllocations::new(15, size, stack);
            assert_eq!(parse(&[alike.word()]), Some(Repeat::Alike(alike)));
        }
        for words in [
            &[][..],
            &[0],
            &[7],
            &[1 << 63],
            &[1 << 63 | 1, 0],
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
