//! The pages that a walk has found readable, so that it probes each of them once, and blocks of memory that it has copied.
//!
//! Nobody unmaps a stack in use, so a probed page of it may be loaded from. Any other page may be unmapped by another thread
//! between probe and load, which would kill the program: there the kernel copies a block, or reports that it cannot.
//!
//! They are in the thread's workspace, because the thread's stack may be too small for them. Pages found by an earlier walk
//! must never count: another thread may have unmapped them since.

use platform::bounds::Bounds;
use platform::sys::{self, PAGE};

const ENTRIES: usize = 16;
/// Words of a copied block. Blocks are aligned, so that none is in two pages.
const BLOCK: usize = 32;
const BLOCK_BYTES: u64 = 8 * BLOCK as u64;
/// As many as the scans of a stack's next frames have in common.
const BLOCKS: usize = 128;

/// What one walk has copied, or found missing; all zeros if nothing.
struct Block {
    address: u64,
    walk: u64,
    is_there: bool,
    words: [u64; BLOCK],
}

/// Readable pages, each with the number of the walk that probed it. All zeros is an empty one.
pub(crate) struct ProbedPages {
    /// By page number: the page's address and, in the low bits, the walk.
    seen: [u64; ENTRIES],
    /// Counts walks; 0 before the first one.
    walk: u64,
    /// The same from 1 to 4095.
    short_walk: u64,
    /// The stacks in use by the thread, which nobody unmaps. Here, as the thread's stack may be small.
    stacks: [Bounds; 2],
    /// The process's id; 0 if this walk has not asked for it. A later walk may be in a forked child.
    process: u32,
    blocks: [Block; BLOCKS],
}

/// The block must be copied first that begins at this address.
pub(crate) struct NotCopied(pub(crate) u64);

impl ProbedPages {
    /// Forgets the pages of earlier walks. `stacks` are in use by the thread.
    pub(crate) fn begin_walk(&mut self, stacks: [Bounds; 2]) {
        self.stacks = stacks;
        self.process = 0;
        self.walk += 1;
        self.short_walk += 1;
        if self.short_walk >= PAGE {
            self.seen.fill(0);
            self.short_walk = 1;
        }
    }

    /// The aligned word at `address`, as this walk has copied it; `None` if it could not.
    pub(crate) fn copied(&self, address: u64) -> Result<Option<u64>, NotCopied> {
        let wanted = address & !(BLOCK_BYTES - 1);
        let block = self.blocks.get((wanted / BLOCK_BYTES) as usize % BLOCKS);
        let block = block
            .filter(|block| (block.address, block.walk) == (wanted, self.walk))
            .ok_or(NotCopied(wanted))?;
        let word = block.words.get(((address - wanted) / 8) as usize).copied();
        Ok(word.filter(|_| block.is_there))
    }

    /// Copies the block at `address`; the results are those of [`sys::copy_own`].
    pub(crate) fn copy_block(&mut self, address: u64) -> Option<bool> {
        let block = self.blocks.get_mut((address / BLOCK_BYTES) as usize % BLOCKS)?;
        block.walk = 0;
        if self.process == 0 {
            self.process = sys::process_id();
        }
        block.is_there = sys::copy_own(self.process, address, &mut block.words)?;
        (block.address, block.walk) = (address, self.walk);
        Some(block.is_there)
    }

    /// Whether the eight bytes at `address` lie in a stack in use.
    pub(crate) fn in_stack(&self, address: u64) -> bool {
        self.stacks.iter().any(|bounds| bounds.hold(address))
    }

    /// Whether this walk has found the page at `page` readable.
    #[inline]
    pub(crate) fn contains(&self, page: u64) -> bool {
        self.seen.get(index(page)) == Some(&(page | self.short_walk))
    }

    /// Notes that the page at `page` is readable.
    pub(crate) fn insert(&mut self, page: u64) {
        if let Some(seen) = self.seen.get_mut(index(page)) {
            *seen = page | self.short_walk;
        }
    }

    #[cfg(test)]
    pub(crate) const fn new() -> Self {
        let blocks = [const { Block { address: 0, walk: 0, is_there: false, words: [0; BLOCK] } }; BLOCKS];
        Self { seen: [0; ENTRIES], walk: 0, short_walk: 0, stacks: [Bounds::NONE; 2], process: 0, blocks }
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
            pages.begin_walk([Bounds::NONE; 2]);
            assert!(!pages.contains(5 * PAGE) && !pages.contains(0));
            pages.insert(5 * PAGE);
            assert!(pages.contains(5 * PAGE) && !pages.contains(6 * PAGE));
            pages.insert((5 + ENTRIES as u64) * PAGE);
            assert!(!pages.contains(5 * PAGE), "one page for each entry");
        }
    }
}
