//! Where a writer has mapped its chunks: the first ones together with the rest of the region, others on demand, in
//! pieces of a quarter of what was mapped at the last doubling.
//!
//! The address space of a region is thus proportional to its use, and no chunk ever moves. All numbers here are
//! private.

use core::ptr::{self, NonNull};

use crate::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Pieces per doubling; fewer if a region starts with fewer chunks.
const STEPS: usize = 4;
/// Enough to grow from one chunk to 65,535.
const PIECES: usize = 16 * STEPS;

/// One piece of the mapping.
struct Piece {
    number: usize,
    /// Index of its first chunk.
    start: usize,
    /// Number of its chunks.
    length: usize,
}

/// The mapped chunks of a region. The first ones need the first fields only.
#[repr(C)]
pub(crate) struct ChunkSpace {
    /// Address of chunk 0.
    base: NonNull<u8>,
    chunk_size: usize,
    /// Number of chunks mapped from the start.
    first: usize,
    capacity: usize,
    pieces: [AtomicPtr<u8>; PIECES],
    mapped: AtomicU64,
}

impl ChunkSpace {
    /// The first `first` chunks are mapped at `base`; the file has `capacity` chunks.
    pub(crate) fn new(base: NonNull<u8>, chunk_size: usize, first: usize, capacity: usize) -> Self {
        Self {
            base,
            chunk_size,
            first,
            capacity,
            pieces: core::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            mapped: AtomicU64::new(first as u64),
        }
    }

    /// Number of mapped chunks.
    pub(crate) fn mapped(&self) -> usize {
        self.mapped.load(Ordering::Acquire) as usize
    }

    /// Where the chunks end that were mapped from the start.
    pub(crate) fn end_of_first(&self) -> usize {
        self.base.addr().get() + self.first * self.chunk_size
    }

    /// Address of a chunk, if it is mapped.
    #[inline]
    pub(crate) fn chunk(&self, index: usize) -> Option<NonNull<u8>> {
        if index < self.first {
            // SAFETY: chunks below `first` lie in the mapping that the caller of `new` promised.
            return Some(unsafe { self.base.add(index * self.chunk_size) });
        }
        self.later_chunk(index)
    }

    fn later_chunk(&self, index: usize) -> Option<NonNull<u8>> {
        self.rest_of_piece(index).map(|(chunk, _)| chunk)
    }

    /// A chunk behind the first ones, if it is mapped, and the number of chunks from there to the end of its piece.
    #[cold]
    #[inline(never)]
    fn rest_of_piece(&self, index: usize) -> Option<(NonNull<u8>, usize)> {
        if index >= self.mapped() {
            return None;
        }
        let piece = self.piece_of(index)?;
        let before = index - piece.start;
        // Acquire: pairs with the release in `add`, like that of `mapped` above.
        let base = NonNull::new(self.pieces.get(piece.number)?.load(Ordering::Acquire))?;
        // SAFETY: the piece begins with chunk `start`, and all chunks below `mapped` are in pieces that were added.
        let chunk = unsafe { base.add(before * self.chunk_size) };
        Some((chunk, piece.length.min(self.capacity - piece.start) - before))
    }

    /// Visits the pieces: their addresses and sizes in bytes.
    pub(crate) fn visit_pieces(&self, mut visit: impl FnMut(NonNull<u8>, usize)) {
        let mut start = self.first;
        while let Some((chunk, count)) = self.rest_of_piece(start) {
            visit(chunk, count * self.chunk_size);
            start += count;
        }
    }

    /// The piece that contains a chunk behind the first ones.
    fn piece_of(&self, index: usize) -> Option<Piece> {
        let doublings = index.checked_div(self.first)?.checked_ilog2()?;
        let steps = STEPS.min(self.first);
        let before = self.first << doublings;
        let length = before.checked_div(steps)?;
        let step = (index - before).checked_div(length)?;
        let start = before + step * length;
        Some(Piece { number: doublings as usize * steps + step, start, length })
    }

    /// The next piece to map: its first chunk and the number of chunks. `None` if all chunks are mapped.
    pub(crate) fn next_piece(&self) -> Option<(usize, usize)> {
        let mapped = self.mapped();
        let left = self.capacity.checked_sub(mapped)?;
        let count = self.piece_of(mapped)?.length.min(left);
        (count > 0 && self.first.is_power_of_two()).then_some((mapped, count))
    }

    /// Adds the [next piece](Self::next_piece). At most one caller at a time.
    ///
    /// # Safety
    /// Its chunks must be mapped at `base`, readable, writable and shared, and must stay so.
    pub(crate) unsafe fn add(&self, base: NonNull<u8>) {
        let Some((first, count)) = self.next_piece() else { return };
        let Some(piece) = self.piece_of(first) else { return };
        if let Some(piece_base) = self.pieces.get(piece.number) {
            piece_base.store(base.as_ptr(), Ordering::Release);
            self.mapped.store((first + count) as u64, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_all_pieces_are_where_they_were_mapped() {
        const SIZE: usize = 8;
        // Initial chunks, capacity, and the lengths of the pieces.
        for (first, capacity, lengths) in [
            (1usize, 7usize, &[1usize, 2, 3][..]),
            (2, 13, &[1, 1, 2, 2, 4, 1]),
            (8, 49, &[2, 2, 2, 2, 4, 4, 4, 4, 8, 8, 1]),
        ] {
            let mut memory = [[0u8; 64 * SIZE]; 12];
            let bases = memory.each_mut().map(|part| NonNull::from(part).cast::<u8>());
            let space = ChunkSpace::new(bases[0], SIZE, first, capacity);
            let mut expected: std::vec::Vec<_> = (0..first).map(|chunk| (bases[0], chunk)).collect();
            for (&length, base) in lengths.iter().zip(&bases[1..]) {
                assert_eq!(space.chunk(expected.len()), None);
                assert_eq!(space.next_piece(), Some((expected.len(), length)), "{first}");
                // SAFETY: the memory is long enough, and outlives the space.
                unsafe { space.add(*base) };
                expected.extend((0..length).map(|chunk| (*base, chunk)));
            }
            assert_eq!((space.mapped(), space.next_piece(), space.chunk(capacity)), (capacity, None, None));
            let mut pieces = std::vec::Vec::new();
            space.visit_pieces(|base, bytes| pieces.push((base, bytes)));
            let added = bases[1..].iter().zip(lengths).map(|(base, length)| (*base, length * SIZE));
            assert_eq!(pieces, added.collect::<std::vec::Vec<_>>());
            for (index, (base, chunk)) in expected.into_iter().enumerate() {
                let found = space.chunk(index).map(|found| found.as_ptr().addr());
                assert_eq!(found, Some(base.as_ptr().addr() + chunk * SIZE), "{index} of {first}");
            }
        }
    }
}
