//! The stacks of a thread's recent allocations, and their numbers in the durable log.
//!
//! An interpreter runs many functions in the same native frames. So a stack with its frames is looked up in two steps: the native
//! ones by the words that they depend on, then all by a hash of both. The interpreter's are looked up by where they begin, or read.
//!
//! A lookup that fails and keeping the stack take as long as a walk. If a program's stacks rarely recur, nearly all are
//! walked only.

use core::ptr::NonNull;

use interpreter::python::{Calls, KnownWalks};
use platform::activity::{Active, is_filtered};
use platform::{huge_pages, sys};
use shm_format::{AlikeAllocations, AllocationCounts, Repeat};
use unwind::{KnownStacks, Leaf, Memory, StackCache, mix};

use crate::appended_stack::AppendedStack;

/// Some stacks of one thread. All zero when empty.
pub(crate) struct RecentStacks {
    stacks: KnownStacks<Recurring>,
    /// Some of the following are not empty.
    has_mixed: bool,
    /// Stacks with an interpreter's frames, in sets by their hashes.
    mixed: [[Mixed; WAYS]; SETS],
    /// How their interpreter's frames were found.
    pub(crate) walks: KnownWalks,
    /// The one that was appended to the log last.
    pub(crate) appended: AppendedStack,
    /// Rises with each miss and falls with each hit. While it is below the maximum, every stack is looked up.
    debt: u32,
    /// Stacks at the maximum.
    untried: u32,
}

/// A stack with an interpreter's frames. All zero if there is none.
#[derive(Clone, Copy)]
struct Mixed {
    /// Hash of its native frames, of the interpreter's, and of where these are among them.
    hash: u64,
    recurring: Recurring,
}

/// A stack that is kept.
#[derive(Clone, Copy)]
pub(crate) enum Kept {
    /// All frames are native. Its index.
    Native(usize),
    /// Some are an interpreter's. Its set and its number there.
    Mixed(usize, usize),
}

/// Stacks with an interpreter's frames that are kept: 2048 times 4.
const SETS: usize = 2048;
const WAYS: usize = 4;

/// What is known of a stack. All zero when it has not recurred.
#[derive(Clone, Copy)]
pub(crate) struct Recurring {
    /// Its number in the durable log; 0 for none.
    number: u32,
    /// Indexes of the counts of its latest sizes, by a hash of the size. One that is of another size counts nothing.
    counts: [u32; SIZES],
    /// Number of counts that it has taken.
    taken: u16,
    /// What its native frames tell of the interpreter.
    calls: u16,
}

/// Number of native stacks from which on they are many: they and their buckets take more than a third of a huge page.
const MANY: usize = 1 << 10;

/// Number of sizes of a stack that are remembered.
const SIZES: usize = 4;
/// Most counts that a stack may take: the table is for all stacks.
const COUNTS: u16 = 64;

impl Recurring {
    const NEW: Self = Self { number: 0, counts: [0; SIZES], taken: 0, calls: 0 };

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
            *index = take(counts, alike)?;
        }
        Some(alike)
    }
}

/// Takes an entry for `alike` and counts an allocation there. Gives the table more memory if need be.
#[cold]
#[inline(never)]
fn take(counts: &AllocationCounts, alike: AlikeAllocations) -> Option<u32> {
    loop {
        if let Some(index) = counts.take(alike) {
            return Some(index);
        }
        let (start, bytes, backed) = counts.without_memory()?;
        // SAFETY: a part of the table's mapping.
        if is_filtered() || !unsafe { sys::populate(start.as_ptr(), bytes) } {
            return None;
        }
        counts.set_backed(backed);
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
        self.walks.reset();
        self.appended.forget();
        if core::mem::take(&mut self.has_mixed) {
            self.mixed.as_flattened_mut().fill(Mixed { hash: 0, recurring: Recurring::NEW });
        }
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

    /// The index of the native stack that a walk from `leaf` would find in modules of this `generation`. `None` if only a walk
    /// can tell.
    #[inline(always)]
    pub(crate) fn find<M: Memory>(
        &mut self,
        generation: u32,
        leaf: &Leaf<'_>,
        memory: &mut M,
    ) -> Option<usize> {
        let index = self.stacks.find(generation, leaf, memory)?;
        self.debt = self.debt.saturating_sub(1);
        Some(index)
    }

    /// What the native stack at `index` tells of the interpreter.
    pub(crate) fn calls(&mut self, index: usize) -> Option<Calls> {
        Some(Calls::unpack(self.stacks.note(index)?.calls))
    }

    /// The hash of the native stack at `index` with the interpreter's frames, of which `frames` is the hash.
    pub(crate) fn mixed_hash(&self, index: usize, frames: u64) -> Option<u64> {
        Some(mix(self.stacks.identity(index)?, frames))
    }

    /// The stack with an interpreter's frames of this hash.
    pub(crate) fn find_mixed(&self, hash: u64) -> Option<Kept> {
        let set = Self::set(hash);
        let way = self.mixed.get(set)?.iter().position(|mixed| mixed.hash == hash)?;
        Some(Kept::Mixed(set, way))
    }

    fn set(hash: u64) -> usize {
        (hash >> 32) as usize % SETS
    }

    fn note(&mut self, kept: Kept) -> Option<&mut Recurring> {
        match kept {
            Kept::Native(index) => self.stacks.note(index),
            Kept::Mixed(set, way) => Some(&mut self.mixed.get_mut(set)?.get_mut(way)?.recurring),
        }
    }

    /// The number of a stack in the durable log. If it has none, `append` writes it.
    #[inline(always)]
    pub(crate) fn number(
        &mut self,
        kept: Kept,
        append: impl FnOnce(&mut Self) -> Option<u32>,
    ) -> Option<u32> {
        match self.note(kept)?.number {
            0 => {
                let number = append(self)?;
                self.note(kept)?.number = number;
                Some(number)
            }
            number => Some(number),
        }
    }

    /// The frames of the native stack at `index`, which was just found in `memory`: leaf first, without the leaf itself.
    pub(crate) fn frames<'f, M: Memory>(
        &self,
        index: usize,
        memory: &mut M,
        frames: &'f mut [u64; KnownStacks::<Recurring>::DEPTH],
    ) -> &'f [u64] {
        self.stacks.frames(index, memory, frames)
    }

    /// Counts an allocation of this size with a stack, which has a number, in a recording. Returns what it is counted among;
    /// `None` if it has to be told apart.
    #[inline(always)]
    pub(crate) fn count(
        &mut self,
        kept: Kept,
        recording: u64,
        size: u64,
        counts: &AllocationCounts,
    ) -> Option<AlikeAllocations> {
        self.note(kept)?.count(recording, u32::try_from(size).ok()?, counts)
    }

    /// Keeps the native stack of the last walk, which is in `cache`, and what it tells of the interpreter.
    pub(crate) fn keep<M: Memory>(
        &mut self,
        generation: u32,
        leaf: &Leaf<'_>,
        cache: &StackCache,
        memory: &mut M,
        calls: u16,
    ) {
        self.miss();
        self.grow();
        let _ = self.stacks.learn(generation, leaf, cache, memory, Recurring { calls, ..Recurring::NEW });
    }

    /// Makes room for more native stacks if the table is full. Without memory the oldest are replaced. Once there are many, they are
    /// in huge pages.
    #[inline]
    fn grow(&mut self) {
        const PART: usize = KnownStacks::<Recurring>::PART_BYTES;
        if self.stacks.learned() == MANY
            && let Some(_active) = Active::enter()
        {
            huge_pages::use_for((&raw mut *self).cast(), size_of::<Self>());
        }
        if self.stacks.wants_part()
            && let Some(_active) = Active::enter()
            && let Some(part) = huge_pages::map(PART).and_then(NonNull::new)
        {
            huge_pages::use_for(part.as_ptr(), PART);
            // SAFETY: a new mapping of zeros, which is never unmapped. A note is valid if it is all zero.
            unsafe { self.stacks.add_part(part) };
        }
    }

    /// Keeps the stack with an interpreter's frames of this hash.
    pub(crate) fn keep_mixed(&mut self, hash: u64) {
        self.miss();
        self.has_mixed = true;
        let Some(set) = self.mixed.get_mut(Self::set(hash)) else { return };
        let free = set.iter().position(|mixed| mixed.hash == 0);
        if let Some(place) = set.get_mut(free.unwrap_or(hash as usize % WAYS)) {
            *place = Mixed { hash, recurring: Recurring::NEW };
        }
    }
}
