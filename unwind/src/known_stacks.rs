//! Stacks that a thread's walks have found before, each with the words of memory by which it was found.
//!
//! A program allocates at a few places in turn, so that a stack is rarely that of the walk before, and often that of one
//! not long ago. What the stack cache knows of one walk stands here for several: a stack is looked for by where its walk
//! began, and holds if all the words that its steps hung on are what they were. Only stacks of simple steps up to the root
//! are kept. What must never happen here: a stack that is believed while one of its words was not compared.

use crate::arch::{Registers, WORD};
use crate::memory::Memory;
use crate::stack_cache::StackCache;

/// log2 of the stacks that are kept.
const STACK_BITS: u32 = 6;
/// Words that a stack may hang on: return addresses, and saved frame pointers by which a step goes.
const WORDS: usize = 64;

/// Some stacks of one thread. All zero when empty.
#[repr(C)]
pub struct KnownStacks {
    /// There may be some.
    is_used: bool,
    stacks: [KnownStack; KnownStacks::COUNT],
}

/// A stack, and what it hangs on. All offsets are from the stack pointer.
#[repr(C)]
struct KnownStack {
    /// Where the walk began; a stack pointer of 0 for none.
    sp: u64,
    pc: u64,
    fp: u64,
    /// Of the modules.
    generation: u32,
    /// Some step goes by this frame pointer.
    by_fp: bool,
    /// Frames behind the first, whose return addresses are the first words.
    depth: u8,
    /// Words in all.
    count: u8,
    /// The highest offset.
    reach: u64,
    words: [u64; WORDS],
    offsets: [u32; WORDS],
}

const _: () = assert!(WORDS <= u8::MAX as usize);

impl KnownStack {
    const NONE: Self = Self {
        sp: 0,
        pc: 0,
        fp: 0,
        generation: 0,
        by_fp: false,
        depth: 0,
        count: 0,
        reach: 0,
        words: [0; WORDS],
        offsets: [0; WORDS],
    };

    /// Adds the word at that offset; false if there is no room.
    fn add(&mut self, offset: u64, word: u64) -> bool {
        let at = usize::from(self.count);
        let (Some(place), Some(value), Ok(short)) =
            (self.offsets.get_mut(at), self.words.get_mut(at), u32::try_from(offset))
        else {
            return false;
        };
        (*place, *value) = (short, word);
        self.count += 1;
        self.reach = self.reach.max(offset);
        true
    }

    /// Whether all words are what they were.
    ///
    /// # Safety
    /// Memory is known to be readable from the stack pointer up to `reach` and seven bytes behind it.
    #[inline(always)]
    unsafe fn holds<M: Memory>(&self, memory: &mut M) -> bool {
        let count = usize::from(self.count);
        let (offsets, words) = (self.offsets.get(..count), self.words.get(..count));
        let (Some(offsets), Some(words)) = (offsets, words) else { return false };
        let (offsets_by_four, offsets) = offsets.as_chunks::<4>();
        let (words_by_four, words) = words.as_chunks::<4>();
        // SAFETY: the caller's promise: no offset is above `reach`.
        let mut change =
            |offset: u32, word: u64| unsafe { memory.load(self.sp.wrapping_add(offset.into())) ^ word };
        for ([o0, o1, o2, o3], [w0, w1, w2, w3]) in offsets_by_four.iter().zip(words_by_four) {
            if change(*o0, *w0) | change(*o1, *w1) | change(*o2, *w2) | change(*o3, *w3) != 0 {
                return false;
            }
        }
        offsets.iter().zip(words).fold(0, |changes, (offset, word)| changes | change(*offset, *word)) == 0
    }
}

impl Default for KnownStacks {
    fn default() -> Self {
        Self::new()
    }
}

impl KnownStacks {
    /// Stacks that are kept.
    pub const COUNT: usize = 1 << STACK_BITS;
    /// Most frames of one.
    pub const DEPTH: usize = WORDS;

    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self { is_used: false, stacks: [KnownStack::NONE; Self::COUNT] }
    }

    /// Forgets all of them. Memory that was never written is not looked at.
    pub fn forget(&mut self) {
        if core::mem::replace(&mut self.is_used, false) {
            self.stacks.iter_mut().for_each(|stack| stack.sp = 0);
        }
    }

    /// The place, below [`COUNT`](Self::COUNT), of the stack that a walk from `leaf` of modules of this generation would find;
    /// none if that is not known without a walk. `memory` is what that walk would read.
    #[inline]
    pub fn find<M: Memory>(&self, generation: u32, leaf: &Registers, memory: &mut M) -> Option<usize> {
        let sp = leaf.sp();
        let until = memory.known_until(sp).saturating_sub(WORD - 1);
        if sp >= until {
            return None;
        }
        // SAFETY: the word lies in known memory.
        let place = place(sp, unsafe { memory.load(sp) });
        let stack = self.stacks.get(place)?;
        let is_same = stack.sp == sp
            && stack.pc == leaf.pc
            && stack.generation == generation
            && (!stack.by_fp || stack.fp == leaf.fp())
            && stack.reach < until - sp;
        // SAFETY: memory is known from the stack pointer to behind the highest word.
        (is_same && unsafe { stack.holds(memory) }).then_some(place)
    }

    /// The frames of the stack at `place`, leaf first, but for the one that its walk began with.
    #[inline]
    #[must_use]
    pub fn frames(&self, place: usize) -> &[u64] {
        let Some(stack) = self.stacks.get(place) else { return &[] };
        stack.words.get(..usize::from(stack.depth)).unwrap_or(&[])
    }

    /// Keeps the stack of the last walk, which began at `leaf` and came to the root; its place, if it can be kept and the walk
    /// was one of modules of this generation. `memory` is what it has read.
    pub fn learn<M: Memory>(
        &mut self,
        generation: u32,
        leaf: &Registers,
        cache: &StackCache,
        memory: &mut M,
    ) -> Option<usize> {
        let sp = leaf.sp();
        if memory.known_until(sp).saturating_sub(WORD - 1) <= sp {
            return None;
        }
        // SAFETY: the word lies in known memory.
        let place = place(sp, unsafe { memory.load(sp) });
        let stack = self.stacks.get_mut(place)?;
        self.is_used = true;
        // What is left half done is none.
        (stack.sp, stack.count, stack.reach) = (0, 0, 0);
        let (depth, by_fp) = cache.words(generation, |slot, word| stack.add(slot.wrapping_sub(sp), word))?;
        (stack.pc, stack.fp, stack.by_fp) = (leaf.pc, leaf.fp(), by_fp);
        (stack.generation, stack.depth) = (generation, u8::try_from(depth).ok()?);
        stack.sp = sp;
        Some(place)
    }
}

/// The place of a stack by its stack pointer and the word there, which is where the caller returns to.
#[inline]
fn place(sp: u64, word: u64) -> usize {
    // Fibonacci hashing, of what differs between calls: the address, and the depth.
    ((word ^ sp.rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - STACK_BITS)) as usize
}
