//! The stacks of a thread's allocations that may come again, and where it wrote them.
//!
//! To keep a stack takes as long as half a walk: of a program whose stacks hardly come again only a few are kept.

use shm_format::{Repeat, StackPlace};
use unwind::{KnownStacks, Memory, Registers, StackCache};

/// Some stacks of one thread. All zero when empty.
pub(crate) struct KeptStacks {
    stacks: KnownStacks,
    written: [StackPlace; KnownStacks::COUNT],
    /// Rises with each stack that was known, falls with each that was not: above 0 all are kept.
    credit: u32,
    /// Walks at a credit of 0.
    unkept: u32,
}

/// What a known stack is worth: as much as to keep so many takes, and the looking that found nothing.
const WORTH: u32 = 1;
const CREDIT_MOST: u32 = 64;
/// Of walks without credit one in so many is kept, so that a program that changes its ways is noticed.
const TRIED: u32 = 16;

// Readers keep those of so many frames.
const _: usize = Repeat::DEPTH - KnownStacks::DEPTH;

impl KeptStacks {
    pub(crate) fn forget(&mut self) {
        self.stacks.forget();
    }

    /// The frames, leaf first but without the first, of the stack that a walk from `leaf` of modules of this generation would
    /// find, and where it was written; none if that is not known without a walk.
    #[inline(always)]
    pub(crate) fn find<M: Memory>(
        &mut self,
        generation: u32,
        leaf: &Registers,
        memory: &mut M,
    ) -> Option<(&[u64], &mut StackPlace)> {
        let place = self.stacks.find(generation, leaf, memory)?;
        self.credit = (self.credit + WORTH).min(CREDIT_MOST);
        Some((self.stacks.frames(place), self.written.get_mut(place)?))
    }

    /// Keeps the stack of the last walk, which is in `cache` and was written at that place, if it seems worth it.
    pub(crate) fn keep<M: Memory>(
        &mut self,
        generation: u32,
        leaf: &Registers,
        cache: &StackCache,
        memory: &mut M,
        written: StackPlace,
    ) {
        if !self.is_worth_keeping() {
            return;
        }
        let kept = self.stacks.learn(generation, leaf, cache, memory);
        if let Some(place) = kept.and_then(|place| self.written.get_mut(place)) {
            *place = written;
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
