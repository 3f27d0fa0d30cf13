//! The repeat record: a stack that its thread has already written to the same chunk, as the distance to that record.
//!
//! It is not part of the stack chain: no later stack refers to it, and it does not change what later stacks refer to. What
//! must never happen here: a reference to another chunk.

use crate::control::Loss;
use crate::pool::Pool;
use crate::record::RecordKind;
use crate::writer::{Committed, Position, RETRIES, Reservation, ThreadCursor};

/// Words of the payload.
const WORDS: usize = 2;
/// First bit of the source in the first word, above the distance.
const SOURCE_AT: u32 = 32;

/// Where a thread has written a stack; all bytes 0 for nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackPosition(pub(crate) Position);

impl StackPosition {
    /// It was not written.
    pub const NOWHERE: Self = Self(Position::NOWHERE);
}

/// The payload of a repeat record: `source:32 | distance:32`, and the nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// How many records before this one the thread wrote the stack.
    pub distance: u64,
    /// What asked for the sample.
    pub source: u8,
    /// The request it answers; 0 = none.
    pub nonce: u64,
}

impl Repeat {
    /// Maximum depth of a repeated stack: readers keep stacks up to that depth.
    pub const DEPTH: usize = 64;
    /// The source whose stacks may be repeated: allocations.
    pub const SOURCE: u8 = 4;

    /// Parses a payload; `None` if no writer produces it.
    #[must_use]
    #[inline]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let ([first, nonce], []) = payload.as_chunks::<8>() else { return None };
        let (first, nonce) = (u64::from_le_bytes(*first), u64::from_le_bytes(*nonce));
        let distance = first & ((1 << SOURCE_AT) - 1);
        let source = u8::try_from(first >> SOURCE_AT).ok()?;
        (distance != 0).then_some(Self { distance, source, nonce })
    }
}

impl ThreadCursor {
    /// Writes a repeat of the stack at `written`. Returns `None` and writes nothing if that is not in the chunk of the next
    /// record.
    ///
    /// # Errors
    /// As for [`reserve`](Self::reserve).
    #[inline]
    pub fn repeat<P: Pool>(
        &self,
        pool: &P,
        written: StackPosition,
        source: u8,
        nonce: u64,
        now: impl Fn() -> u64,
    ) -> Result<Option<Committed>, Loss> {
        for _ in 0..RETRIES {
            let mut distance = None;
            let can_be = |next: Position| next.is_in_chunk_of(written.0);
            if !self.next_position(pool).is_some_and(can_be) {
                return Ok(None);
            }
            let size = |distance: &mut Option<u64>, next: Position| {
                *distance = can_be(next).then(|| next.sequence.wrapping_sub(written.0.sequence));
                WORDS
            };
            let then = |distance: &mut Option<u64>, mut record: Reservation<'_, P>| {
                // `None` if a nested record has switched chunks: this record becomes void.
                let distance = (*distance)?;
                record.set(0, u64::from(source) << SOURCE_AT | distance);
                record.set(1, nonce);
                Some(record.commit())
            };
            let tried = self.try_write(pool, RecordKind::Repeat, &now, &mut distance, size, then)?;
            if let Some(written) = tried {
                return Ok(written);
            }
        }
        self.lose(Loss::Retries)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_no_writer_writes_is_none() {
        let payload = |first: u64, nonce: u64| [first.to_le_bytes(), nonce.to_le_bytes()].concat();
        let read = Repeat::parse(&payload(4 << 32 | 17, 99));
        assert_eq!(read, Some(Repeat { distance: 17, source: 4, nonce: 99 }));
        assert_eq!(Repeat::parse(&payload(4 << 32, 99)), None, "itself");
        assert_eq!(Repeat::parse(&payload(256 << 32 | 1, 99)), None);
        assert_eq!(Repeat::parse(&payload(4 << 32 | 1, 99)[1..]), None);
        assert_eq!(Repeat::parse(&[payload(4 << 32 | 1, 99), [0; 8].into()].concat()), None);
    }
}
