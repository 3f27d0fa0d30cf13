//! The stacks of a thread's recent allocations, and where it wrote them.
//!
//! Keeping a stack takes half as long as a walk. If a program's stacks rarely recur, only a few are kept.

use shm_format::{Repeat, StackPosition};
use unwind::{KnownStacks, Memory, Registers, StackCache};

/// Some stacks of one thread. All zero when empty.
pub(crate) struct RecentStacks {
    stacks: KnownStacks,
    written: [StackPosition; KnownStacks::COUNT],
    /// Rises with each hit and falls with each miss. While it is above 0, every stack is kept.
    credit: u32,
    /// Misses at a credit of 0.
    unkept: u32,
}

/// Credit for a hit: it saves as much as keeping this many stacks costs, failed lookups included.
const WORTH: u32 = 1;
const CREDIT_MOST: u32 = 64;
/// Without credit one stack in this many is kept, to notice when a program's stacks begin to recur.
const TRIED: u32 = 16;

// Readers keep stacks up to that depth.
const _: usize = Repeat::DEPTH - KnownStacks::DEPTH;

impl RecentStacks {
    pub(crate) fn forget(&mut self) {
        self.stacks.forget();
    }

    /// The stack that a walk from `leaf` would find in modules of this `generation`: its frames, leaf first, without the
    /// leaf itself, and where it was written. `None` if only a walk can tell.
    #[inline(always)]
    pub(crate) fn find<M: Memory>(
        &mut self,
        generation: u32,
        leaf: &Registers,
        memory: &mut M,
    ) -> Option<(&[u64], &mut StackPosition)> {
        let index = self.stacks.find(generation, leaf, memory)?;
        self.credit = (self.credit + WORTH).min(CREDIT_MOST);
        Some((self.stacks.frames(index), self.written.get_mut(index)?))
    }

    /// Keeps the stack of the last walk, which is in `cache` and was written at `written`, if stacks recur often enough.
    pub(crate) fn keep<M: Memory>(
        &mut self,
        generation: u32,
        leaf: &Registers,
        cache: &StackCache,
        memory: &mut M,
        written: StackPosition,
    ) {
        if !self.is_worth_keeping() {
            return;
        }
        let learned = self.stacks.learn(generation, leaf, cache, memory);
        if let Some(position) = learned.and_then(|index| self.written.get_mut(index)) {
            *position = written;
        }
    }

    fn is_worth_keeping(&mut self) -> bool {
        if let Some(less) = self.credit.checked_sub(1) {
            self.credit = less;
            return true;
        }
        self.unkept = self.unkept.wrapping_add(1);
        self.unkept.is_multiple_of(TRIED)
    }
}
