//! The stacks of a thread's recent allocations, and their numbers in the durable log.
//!
//! A lookup that fails and keeping the stack take as long as a walk. If a program's stacks rarely recur, nearly all are
//! walked only.

use shm_format::{AlikeAllocations, Repeat};
use unwind::{KnownStacks, Memory, Registers, StackCache};

/// Some stacks of one thread. All zero when empty.
pub(crate) struct RecentStacks {
    stacks: KnownStacks<Recurring>,
    /// Rises with each miss and falls with each hit. While it is below the maximum, every stack is looked up.
    debt: u32,
    /// Stacks at the maximum.
    untried: u32,
}

/// What is known of a stack. All zero when it has not recurred.
#[derive(Clone, Copy)]
pub(crate) struct Recurring {
    /// Its number in the durable log; 0 for none.
    number: u32,
    /// Sizes of its latest allocations, plus one; 0 for none.
    sizes: [u32; SIZES],
    /// How often an allocation had none of these sizes.
    changes: u32,
}

/// Number of sizes of a stack that are remembered.
const SIZES: usize = 4;
/// Beyond so many changes of size, only allocations of a size that recurs are not told apart: the reader keeps an entry for
/// each such size.
const CHANGES: u32 = 64;

impl Recurring {
    const NEW: Self = Self { number: 0, sizes: [0; SIZES], changes: 0 };

    /// Whether allocations of this size need not be told apart. The size is remembered.
    #[inline]
    fn may_share(&mut self, size: u32) -> bool {
        // Fibonacci hashing.
        let place = (size.wrapping_mul(0x9e37_79b9) >> 16) as usize % SIZES;
        let (Some(known), Some(next)) = (self.sizes.get_mut(place), size.checked_add(1)) else {
            return false;
        };
        if core::mem::replace(known, next) == next {
            return true;
        }
        self.changes = self.changes.saturating_add(1);
        self.changes <= CHANGES
    }
}

/// What a miss adds to the debt. A hit takes 1 off.
const MISS: u32 = 2;
/// Maximum debt: a program may have as many stacks as are known before the first one recurs.
const DEBT_MOST: u32 = MISS * KnownStacks::<Recurring>::COUNT as u32;
/// At the maximum one stack in this many is looked up, to notice when a program's stacks begin to recur.
const TRIED: u32 = 16;

// The log takes stacks up to that depth.
const _: usize = Repeat::DEPTH - KnownStacks::<Recurring>::DEPTH;

impl RecentStacks {
    pub(crate) fn forget(&mut self) {
        self.stacks.forget();
    }

    /// Whether to look up the next stack.
    #[inline(always)]
    pub(crate) fn is_worth_a_try(&mut self) -> bool {
        if self.debt < DEBT_MOST {
            return true;
        }
        self.untried = self.untried.wrapping_add(1);
        self.untried.is_multiple_of(TRIED)
    }

    /// Notes that a lookup was of no use.
    pub(crate) fn miss(&mut self) {
        self.debt = (self.debt + MISS).min(DEBT_MOST);
    }

    /// The index of the stack that a walk from `leaf` would find in modules of this `generation`. `None` if only a walk can
    /// tell.
    #[inline(always)]
    pub(crate) fn find<M: Memory>(
        &mut self,
        generation: u32,
        leaf: &Registers,
        memory: &mut M,
    ) -> Option<usize> {
        let index = self.stacks.find(generation, leaf, memory)?;
        self.debt = self.debt.saturating_sub(1);
        Some(index)
    }

    /// The number in the durable log of the stack at `index`, which was just found in `memory`. If it has none, `append`
    /// gets its frames, leaf first, without the leaf itself.
    #[inline(always)]
    pub(crate) fn number<M: Memory>(
        &mut self,
        index: usize,
        append: impl FnOnce(&[u64]) -> Option<u32>,
        memory: &mut M,
    ) -> Option<u32> {
        match self.stacks.note(index)?.number {
            0 => self.give_number(index, append, memory),
            number => Some(number),
        }
    }

    #[cold]
    #[inline(never)]
    fn give_number<M: Memory>(
        &mut self,
        index: usize,
        append: impl FnOnce(&[u64]) -> Option<u32>,
        memory: &mut M,
    ) -> Option<u32> {
        let number = append(self.stacks.frames(index, memory, &mut [0; KnownStacks::<Recurring>::DEPTH]))?;
        self.stacks.note(index)?.number = number;
        Some(number)
    }

    /// The allocations of this size with the stack at `index`, which has a number, in a recording, if they need not be told
    /// apart.
    #[inline(always)]
    pub(crate) fn alike(&mut self, recording: u64, size: u64, index: usize) -> Option<AlikeAllocations> {
        let (recurring, size) = (self.stacks.note(index)?, u32::try_from(size).ok()?);
        recurring.may_share(size).then(|| AlikeAllocations::new(recording, size, recurring.number))
    }

    /// Keeps the stack of the last walk, which is in `cache`.
    pub(crate) fn keep<M: Memory>(
        &mut self,
        generation: u32,
        leaf: &Registers,
        cache: &StackCache,
        memory: &mut M,
    ) {
        self.miss();
        let _ = self.stacks.learn(generation, leaf, cache, memory, Recurring::NEW);
    }
}
