//! The stacks of a thread's recent allocations, and their numbers in the durable log.
//!
//! A lookup that fails and keeping the stack take as long as a walk. If a program's stacks rarely recur, nearly all are
//! walked only.

use shm_format::{AlikeAllocations, AllocationCounts, Repeat};
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
    /// Indexes of the counts of its latest sizes, by a hash of the size. One that is of another size counts nothing.
    counts: [u32; SIZES],
    /// Number of counts that it has taken.
    taken: u32,
}

/// Number of sizes of a stack that are remembered.
const SIZES: usize = 4;
/// Most counts that a stack may take: the table is for all stacks.
const COUNTS: u32 = 64;

impl Recurring {
    const NEW: Self = Self { number: 0, counts: [0; SIZES], taken: 0 };

    /// Counts an allocation. Returns what it is counted among; `None` if it has to be told apart.
    #[inline(always)]
    fn count(&mut self, recording: u64, size: u32, counts: &AllocationCounts) -> Option<AlikeAllocations> {
        let alike = AlikeAllocations::new(recording, size, self.number);
        // Fibonacci hashing.
        let index = self.counts.get_mut((size.wrapping_mul(0x9e37_79b9) >> 16) as usize % SIZES)?;
        if !counts.count(*index, alike) {
            if self.taken >= COUNTS {
                return None;
            }
            self.taken += 1;
            *index = counts.take(alike)?;
        }
        Some(alike)
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

    /// Counts an allocation of this size with the stack at `index`, which has a number, in a recording. Returns what it is
    /// counted among; `None` if it has to be told apart.
    #[inline(always)]
    pub(crate) fn count(
        &mut self,
        index: usize,
        recording: u64,
        size: u64,
        counts: &AllocationCounts,
    ) -> Option<AlikeAllocations> {
        self.stacks.note(index)?.count(recording, u32::try_from(size).ok()?, counts)
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
