//! The stacks of a thread's recent allocations, and where it wrote them.
//!
//! Keeping a stack takes half as long as a walk. If a program's stacks rarely recur, only a few are kept.

use shm_format::{AllocationNonce, Repeat, StackPosition};
use unwind::{KnownStacks, Memory, Registers, StackCache};

/// Some stacks of one thread. All zero when empty.
pub(crate) struct RecentStacks {
    stacks: KnownStacks,
    written: [WrittenStack; KnownStacks::COUNT],
    /// Rises with each hit and falls with each miss. While it is above 0, every stack is kept.
    credit: u32,
    /// Misses at a credit of 0.
    unkept: u32,
}

/// Where a stack was written, and the first allocations of some sizes that followed there. All zero for nowhere.
#[derive(Clone, Copy)]
pub(crate) struct WrittenStack {
    position: StackPosition,
    first: [AllocationNonce; SIZES],
}

/// Number of sizes of a stack that are told apart at a time.
const SIZES: usize = 4;

impl WrittenStack {
    /// A stack written at `position` for its first allocation.
    pub(crate) fn new(position: StackPosition, allocation: AllocationNonce) -> Self {
        let mut written = Self { position, first: [AllocationNonce(0); SIZES] };
        if position != StackPosition::NOWHERE {
            written.begin(allocation);
        }
        written
    }

    /// Where it was written.
    pub(crate) fn position(&self) -> StackPosition {
        self.position
    }

    /// The first allocation of the same size.
    #[inline]
    pub(crate) fn first(&self, allocation: AllocationNonce) -> Option<AllocationNonce> {
        let first = *self.first.get(way(allocation))?;
        (!first.is_further() && first.further() == allocation.further()).then_some(first)
    }

    /// Makes this allocation the first of its size.
    #[inline]
    pub(crate) fn begin(&mut self, allocation: AllocationNonce) {
        if let Some(first) = self.first.get_mut(way(allocation)) {
            *first = allocation;
        }
    }
}

/// Index of the allocation's size.
#[inline]
fn way(allocation: AllocationNonce) -> usize {
    // Fibonacci hashing.
    (allocation.further().0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % SIZES
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
    /// leaf itself, and what was written of it. `None` if only a walk can tell.
    #[inline(always)]
    pub(crate) fn find<M: Memory>(
        &mut self,
        generation: u32,
        leaf: &Registers,
        memory: &mut M,
    ) -> Option<(&[u64], &mut WrittenStack)> {
        let index = self.stacks.find(generation, leaf, memory)?;
        self.credit = (self.credit + WORTH).min(CREDIT_MOST);
        Some((self.stacks.frames(index), self.written.get_mut(index)?))
    }

    /// Keeps the stack of the last walk, which is in `cache` and was written as `written`, if stacks recur often enough.
    pub(crate) fn keep<M: Memory>(
        &mut self,
        generation: u32,
        leaf: &Registers,
        cache: &StackCache,
        memory: &mut M,
        written: WrittenStack,
    ) {
        if !self.is_worth_keeping() {
            return;
        }
        let learned = self.stacks.learn(generation, leaf, cache, memory);
        if let Some(stack) = learned.and_then(|index| self.written.get_mut(index)) {
            *stack = written;
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
