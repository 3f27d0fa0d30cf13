//! Where a writer has mapped its chunks: the first of them with the rest of the region, more as they are wanted, in
//! pieces each a quarter as long as what was there at the last doubling.
//!
//! So the address space of a region is in proportion to its use, and no chunk ever moves. All numbers here are private.

use core::ptr::{self, NonNull};

use crate::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Pieces from one doubling to the next; fewer where a region starts with fewer chunks.
const STEPS: usize = 4;
/// From one chunk to 65,535.
const PIECES: usize = 16 * STEPS;

/// One piece.
struct Piece {
    number: usize,
    /// Its first chunk.
    start: usize,
    /// Its chunks.
    length: usize,
}

/// The mapped chunks of a region.
pub(crate) struct ChunkSpace {
    /// Chunk 0.
    base: NonNull<u8>,
    chunk_size: usize,
    /// Chunks mapped from the start.
    first: usize,
    capacity: usize,
    pieces: [AtomicPtr<u8>; PIECES],
    mapped: AtomicU64,
}

impl ChunkSpace {
    /// The first `first` chunks, of `capacity` in the file, lie from `base` on.
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

    /// Chunks that are mapped.
    pub(crate) fn mapped(&self) -> usize {
        self.mapped.load(Ordering::Acquire) as usize
    }

    /// Where a chunk is, if it is mapped.
    #[inline]
    pub(crate) fn chunk(&self, index: usize) -> Option<NonNull<u8>> {
        if index < self.first {
            // SAFETY: chunks below `first` are in the mapping that the maker promised.
            return Some(unsafe { self.base.add(index * self.chunk_size) });
        }
        self.later_chunk(index)
    }

    #[cold]
    fn later_chunk(&self, index: usize) -> Option<NonNull<u8>> {
        if index >= self.mapped() {
            return None;
        }
        let piece = self.piece_of(index)?;
        // Acquire of the release in `add`, as that of `mapped` above.
        let base = NonNull::new(self.pieces.get(piece.number)?.load(Ordering::Acquire))?;
        // SAFETY: the piece begins with chunk `start`, and all below `mapped` are in pieces that were added.
        Some(unsafe { base.add((index - piece.start) * self.chunk_size) })
    }

    /// The piece that a chunk behind the first ones is in.
    fn piece_of(&self, index: usize) -> Option<Piece> {
        let doublings = index.checked_div(self.first)?.checked_ilog2()?;
        let steps = STEPS.min(self.first);
        let before = self.first << doublings;
        let length = before.checked_div(steps)?;
        let step = (index - before).checked_div(length)?;
        let start = before + step * length;
        Some(Piece { number: doublings as usize * steps + step, start, length })
    }

    /// The next piece: its first chunk, and how many it has. None if all chunks are mapped.
    pub(crate) fn next_piece(&self) -> Option<(usize, usize)> {
        let mapped = self.mapped();
        let left = self.capacity.checked_sub(mapped)?;
        let count = self.piece_of(mapped)?.length.min(left);
        (count > 0 && self.first.is_power_of_two()).then_some((mapped, count))
    }

    /// Adds the [next piece](Self::next_piece). One caller at a time.
    ///
    /// # Safety
    /// Its chunks are mapped from `base` on, readable, writable, shared, and stay so.
    pub(crate) unsafe fn add(&self, base: NonNull<u8>) {
        let Some((first, count)) = self.next_piece() else { return };
        let Some(piece) = self.piece_of(first) else { return };
        if let Some(place) = self.pieces.get(piece.number) {
            place.store(base.as_ptr(), Ordering::Release);
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
        // Chunks from the start, their limit, and the lengths of the pieces.
        for (first, capacity, lengths) in [
            (1usize, 7usize, &[1usize, 2, 3][..]),
            (2, 13, &[1, 1, 2, 2, 4, 1]),
            (8, 49, &[2, 2, 2, 2, 4, 4, 4, 4, 8, 8, 1]),
        ] {
            let mut memory = [[0u8; 64 * SIZE]; 12];
            let bases = memory.each_mut().map(|part| NonNull::from(part).cast::<u8>());
            let space = ChunkSpace::new(bases[0], SIZE, first, capacity);
            let mut places: std::vec::Vec<_> = (0..first).map(|chunk| (bases[0], chunk)).collect();
            for (&length, base) in lengths.iter().zip(&bases[1..]) {
                assert_eq!(space.chunk(places.len()), None);
                assert_eq!(space.next_piece(), Some((places.len(), length)), "{first}");
                // SAFETY: the memory is long enough, and outlives the space.
                unsafe { space.add(*base) };
                places.extend((0..length).map(|chunk| (*base, chunk)));
            }
            assert_eq!((space.mapped(), space.next_piece(), space.chunk(capacity)), (capacity, None, None));
            for (index, (base, chunk)) in places.into_iter().enumerate() {
                let found = space.chunk(index).map(|found| found.as_ptr().addr());
                assert_eq!(found, Some(base.as_ptr().addr() + chunk * SIZE), "{index} of {first}");
            }
        }
    }
}
