//! Where a writer has mapped its chunks: the first of them with the rest of the region, more as they are wanted, in
//! pieces each as long as all before it together.
//!
//! So the address space of a region is in proportion to its use, and no chunk ever moves. All numbers here are private.

use core::ptr::{self, NonNull};

use crate::atomic::{AtomicPtr, AtomicU64, Ordering};

/// From one chunk to 65,535 by doubling.
const PIECES: usize = 16;

/// The mapped chunks of a region.
pub(crate) struct ChunkSpace {
    /// Chunk 0.
    base: NonNull<u8>,
    chunk_size: usize,
    /// Chunks mapped from the start.
    first: usize,
    capacity: usize,
    /// Piece n holds `first << n` chunks, from the one of that number on.
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
        let piece = index.checked_div(self.first)?.checked_ilog2()? as usize;
        // Acquire of the release in `add`, as that of `mapped` above.
        let base = NonNull::new(self.pieces.get(piece)?.load(Ordering::Acquire))?;
        // SAFETY: the piece begins with chunk `first << piece`, and all below `mapped` are in pieces that were added.
        Some(unsafe { base.add((index - (self.first << piece)) * self.chunk_size) })
    }

    /// The next piece: its first chunk, and how many it has. None if all chunks are mapped.
    pub(crate) fn next_piece(&self) -> Option<(usize, usize)> {
        let mapped = self.mapped();
        let count = mapped.min(self.capacity.checked_sub(mapped)?);
        (count > 0 && self.first.is_power_of_two()).then_some((mapped, count))
    }

    /// Adds the [next piece](Self::next_piece). One caller at a time.
    ///
    /// # Safety
    /// Its chunks are mapped from `base` on, readable, writable, shared, and stay so.
    pub(crate) unsafe fn add(&self, base: NonNull<u8>) {
        let Some((first, count)) = self.next_piece() else { return };
        let piece = (first / self.first).ilog2() as usize;
        if let Some(place) = self.pieces.get(piece) {
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
        let mut memory = [[0u8; 64 * SIZE]; 4];
        let bases = memory.each_mut().map(|part| NonNull::from(part).cast::<u8>());
        let space = ChunkSpace::new(bases[0], SIZE, 4, 27);
        assert_eq!((space.mapped(), space.next_piece()), (4, Some((4, 4))));
        assert_eq!(space.chunk(4), None);
        for (base, next) in [(bases[1], Some((8, 8))), (bases[2], Some((16, 11))), (bases[3], None)] {
            // SAFETY: the memory is long enough, and outlives the space.
            unsafe { space.add(base) };
            assert_eq!(space.next_piece(), next);
        }
        let at = |base: NonNull<u8>, chunk: usize| Some(base.as_ptr().addr() + chunk * SIZE);
        let found = |index| space.chunk(index).map(|chunk| chunk.as_ptr().addr());
        assert_eq!((found(0), found(3)), (at(bases[0], 0), at(bases[0], 3)));
        assert_eq!((found(4), found(7)), (at(bases[1], 0), at(bases[1], 3)));
        assert_eq!((found(8), found(15)), (at(bases[2], 0), at(bases[2], 7)));
        assert_eq!((found(16), found(26), found(27)), (at(bases[3], 0), at(bases[3], 10), None));
    }
}
