//! The pages that a walk has found readable, so that it probes each of them once, and blocks of memory that it has copied.
//!
//! Nobody unmaps a stack in use, so a probed page of it may be loaded from. Any other page may be unmapped by another thread
//! between probe and load, which would kill the program: there the kernel copies a block, or reports that it cannot.
//!
//! They are in the thread's workspace, because the thread's stack may be too small for them. Pages found by an earlier walk
//! must never count: another thread may have unmapped them since.

use crate::bounds::Bounds;
use crate::sys::{self, PAGE};

const ENTRIES: usize = 16;
/// Words of a copied block. Blocks are aligned, so that none is in two pages.
const BLOCK: usize = 32;
const BLOCK_BYTES: u64 = 8 * BLOCK as u64;
const BLOCKS: usize = 8;

/// What one walk has copied, all zeros if none.
struct Block {
    address: u64,
    walk: u64,
    words: [u64; BLOCK],
}

/// Readable pages, each with the number of the walk that probed it. All zeros is an empty one.
pub(crate) struct ProbedPages {
    /// By page number: the page's address and, in the low bits, the walk.
    seen: [u64; ENTRIES],
    /// 1 to 4095; 0 before the first walk.
    walk: u64,
    /// The stacks in use by the thread, which nobody unmaps. Here, as the thread's stack may be small.
    stacks: [Bounds; 3],
    blocks: [Block; BLOCKS],
}

/// The block must be copied first that begins at this address.
pub(crate) struct Missing(pub(crate) u64);

impl ProbedPages {
    /// Forgets the pages of earlier walks. `stacks` are in use by the thread.
    #[inline]
    pub(crate) fn begin_walk(&mut self, stacks: [Bounds; 3]) {
        self.stacks = stacks;
        self.walk += 1;
        if self.walk >= PAGE {
            self.forget_all();
        }
    }

    #[cold]
    fn forget_all(&mut self) {
        self.seen.fill(0);
        self.blocks.iter_mut().for_each(|block| block.walk = 0);
        self.walk = 1;
    }

    /// The aligned word at `address`, as this walk has copied it.
    pub(crate) fn copied(&self, address: u64) -> Result<u64, Missing> {
        let wanted = address & !(BLOCK_BYTES - 1);
        let block = self.blocks.get((wanted / BLOCK_BYTES) as usize % BLOCKS);
        let word = block
            .filter(|block| (block.address, block.walk) == (wanted, self.walk))
            .and_then(|block| block.words.get(((address - wanted) / 8) as usize));
        word.copied().ok_or(Missing(wanted))
    }

    /// Copies the block at `address`; the results are those of [`sys::copy_own`].
    pub(crate) fn copy_block(&mut self, address: u64) -> Option<bool> {
        let block = self.blocks.get_mut((address / BLOCK_BYTES) as usize % BLOCKS)?;
        block.walk = 0;
        let is_copied = sys::copy_own(address, &mut block.words)?;
        if is_copied {
            (block.address, block.walk) = (address, self.walk);
        }
        Some(is_copied)
    }

    /// Whether the eight bytes at `address` lie in a stack in use.
    pub(crate) fn in_stack(&self, address: u64) -> bool {
        self.stacks.iter().any(|bounds| bounds.hold(address))
    }

    /// Whether this walk has found the page at `page` readable.
    #[inline]
    pub(crate) fn contains(&self, page: u64) -> bool {
        self.seen.get(index(page)) == Some(&(page | self.walk))
    }

    /// Notes that the page at `page` is readable.
    pub(crate) fn insert(&mut self, page: u64) {
        if let Some(seen) = self.seen.get_mut(index(page)) {
            *seen = page | self.walk;
        }
    }

    #[cfg(test)]
    pub(crate) const fn new() -> Self {
        let blocks = [const { Block { address: 0, walk: 0, words: [0; BLOCK] } }; BLOCKS];
        Self { seen: [0; ENTRIES], walk: 0, stacks: [Bounds::NONE; 3], blocks }
    }
}

fn index(page: u64) -> usize {
    (page / PAGE) as usize % ENTRIES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_counts_for_one_walk() {
        let mut pages = ProbedPages::new();
        for _ in 0..2 * PAGE {
            pages.begin_walk([Bounds::NONE; 3]);
            assert!(!pages.contains(5 * PAGE) && !pages.contains(0));
            pages.insert(5 * PAGE);
            assert!(pages.contains(5 * PAGE) && !pages.contains(6 * PAGE));
            pages.insert((5 + ENTRIES as u64) * PAGE);
            assert!(!pages.contains(5 * PAGE), "one page for each entry");
        }
    }
}
