//! Finds allocations of the same thread, stack and size: one sample stands for those of one pass.
//!
//! If all allocations are recorded, most equal an earlier one, and to decode, sort, store and name each would cost more
//! than the program's own share. What must never happen here: allocations counted as equal whose blocks have different
//! names.

use shm_format::{AllocationNonce, ChunkInfo, RecordRef, Repeat};

use crate::drain::merge::Queued;

/// The allocations of one pass that further ones may equal. One may push out another, which costs a second sample.
#[derive(Default)]
pub(super) struct EqualAllocations {
    /// Empty until the first repeat.
    entries: Vec<Option<(Key, Queued)>>,
}

/// log2 of the number of allocations that are remembered.
const INDEX_BITS: u32 = 9;

/// The record with their stack, and their size.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    chunk: u32,
    stack: u64,
    nonce: u64,
}

impl Key {
    /// That of a record; `None` if its block has a name of its own.
    fn of(chunk: &ChunkInfo, record: &RecordRef<'_>) -> Option<Self> {
        let Repeat { distance, nonce, .. } = Repeat::parse(record.payload)?;
        let key = Self { chunk: chunk.index, stack: record.sequence.wrapping_sub(distance), nonce };
        AllocationNonce(nonce).is_further().then_some(key)
    }

    fn index(self) -> usize {
        // Fibonacci hashing.
        let word = self.nonce ^ self.stack ^ u64::from(self.chunk).rotate_left(32);
        (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - INDEX_BITS)) as usize
    }
}

impl EqualAllocations {
    /// The sample that stands for equal allocations.
    #[inline]
    pub(super) fn find(&self, chunk: &ChunkInfo, record: &RecordRef<'_>) -> Option<Queued> {
        let key = Key::of(chunk, record)?;
        let (known, queued) = (*self.entries.get(key.index())?)?;
        (known == key).then_some(queued)
    }

    /// Remembers the sample of a record.
    pub(super) fn keep(&mut self, chunk: &ChunkInfo, record: &RecordRef<'_>, queued: Queued) {
        let Some(key) = Key::of(chunk, record) else { return };
        self.entries.resize(1 << INDEX_BITS, None);
        self.entries[key.index()] = Some((key, queued));
    }
}
