//! Stacks that a thread's earlier walks have found, each with the words of memory that it depends on.
//!
//! A program allocates at a few places in turn, so a stack is rarely that of the previous walk, but often that of a
//! recent one. The stack cache knows one walk; this table knows several. A stack is looked up by where its walk began,
//! and is valid if all the words that its steps depend on are unchanged. Only stacks that fast steps walked to the
//! root are kept. What must never happen here: accepting a stack of which one word was not compared.

use crate::arch::{Registers, WORD};
use crate::memory::Memory;
use crate::stack_cache::StackCache;

/// log2 of the number of stacks that are kept.
const STACK_BITS: u32 = 6;
/// Maximum number of words that a stack may depend on: return addresses, and saved frame pointers that a step uses.
const WORDS: usize = 64;

/// Recent stacks of one thread. All zero when empty.
#[repr(C)]
pub struct KnownStacks {
    /// False if the table is certainly empty.
    is_used: bool,
    stacks: [KnownStack; KnownStacks::COUNT],
}

/// A stack, and the words that it depends on. All offsets are from the stack pointer.
#[repr(C)]
struct KnownStack {
    /// Stack pointer at which the walk began; 0 if this entry is empty.
    sp: u64,
    pc: u64,
    fp: u64,
    /// Generation of the modules.
    generation: u32,
    /// Some step uses the frame pointer at which the walk began.
    by_fp: bool,
    /// Number of frames after the first one. Their return addresses are the first words.
    depth: u8,
    /// Number of words.
    count: u8,
    /// Highest offset of a word.
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

    /// Adds the word at this offset; false if there is no room.
    fn add(&mut self, offset: u64, word: u64) -> bool {
        let at = usize::from(self.count);
        let (Some(offset_at), Some(value), Ok(short)) =
            (self.offsets.get_mut(at), self.words.get_mut(at), u32::try_from(offset))
        else {
            return false;
        };
        (*offset_at, *value) = (short, word);
        self.count += 1;
        self.reach = self.reach.max(offset);
        true
    }

    /// Whether all words are unchanged.
    ///
    /// # Safety
    /// All memory from the stack pointer up to and including the word at offset `reach` must be known to be readable.
    #[inline(always)]
    unsafe fn holds<M: Memory>(&self, memory: &mut M) -> bool {
        let count = usize::from(self.count);
        let (offsets, words) = (self.offsets.get(..count), self.words.get(..count));
        let (Some(offsets), Some(words)) = (offsets, words) else { return false };
        let (offsets_by_four, offsets) = offsets.as_chunks::<4>();
        let (words_by_four, words) = words.as_chunks::<4>();
        // SAFETY: the caller guarantees that memory up to `reach` is readable, and no offset exceeds it.
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
    /// Maximum number of stacks.
    pub const COUNT: usize = 1 << STACK_BITS;
    /// Maximum number of frames of a stack.
    pub const DEPTH: usize = WORDS;

    /// An empty table.
    #[must_use]
    pub const fn new() -> Self {
        Self { is_used: false, stacks: [KnownStack::NONE; Self::COUNT] }
    }

    /// Forgets all stacks. A table that was never used is not touched: its memory stays unallocated.
    pub fn forget(&mut self) {
        if core::mem::replace(&mut self.is_used, false) {
            self.stacks.iter_mut().for_each(|stack| stack.sp = 0);
        }
    }

    /// Returns the index (less than [`COUNT`](Self::COUNT)) of the stack that a walk from `leaf` with modules of this
    /// generation would find; `None` if that cannot be told without a walk. `memory` is what the walk would read.
    #[inline]
    pub fn find<M: Memory>(&self, generation: u32, leaf: &Registers, memory: &mut M) -> Option<usize> {
        let sp = leaf.sp();
        let until = memory.known_until(sp).saturating_sub(WORD - 1);
        if sp >= until {
            return None;
        }
        // SAFETY: the word is in known memory.
        let index = index_of(sp, unsafe { memory.load(sp) });
        let stack = self.stacks.get(index)?;
        let is_same = stack.sp == sp
            && stack.pc == leaf.pc
            && stack.generation == generation
            && (!stack.by_fp || stack.fp == leaf.fp())
            && stack.reach < until - sp;
        // SAFETY: memory is known to be readable from the stack pointer to the end of the highest word.
        (is_same && unsafe { stack.holds(memory) }).then_some(index)
    }

    /// The frames of the stack at `index`, leaf first, without the one at which its walk began.
    #[inline]
    #[must_use]
    pub fn frames(&self, index: usize) -> &[u64] {
        let Some(stack) = self.stacks.get(index) else { return &[] };
        stack.words.get(..usize::from(stack.depth)).unwrap_or(&[])
    }

    /// Keeps the stack of the last walk, which began at `leaf` and reached the root, and returns its index. `None` if
    /// the stack cannot be kept, or if the walk used modules of another generation. `memory` is what the walk has read.
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
        // SAFETY: the word is in known memory.
        let index = index_of(sp, unsafe { memory.load(sp) });
        let stack = self.stacks.get_mut(index)?;
        self.is_used = true;
        // Mark the entry as empty first, so that an interrupted update leaves no stack.
        (stack.sp, stack.count, stack.reach) = (0, 0, 0);
        let (depth, by_fp) = cache.words(generation, |slot, word| stack.add(slot.wrapping_sub(sp), word))?;
        (stack.pc, stack.fp, stack.by_fp) = (leaf.pc, leaf.fp(), by_fp);
        (stack.generation, stack.depth) = (generation, u8::try_from(depth).ok()?);
        stack.sp = sp;
        Some(index)
    }
}

/// Index of a stack, from its stack pointer and the word there, which is the return address.
#[inline]
fn index_of(sp: u64, word: u64) -> usize {
    // Fibonacci hashing of what differs between calls: the address, and the depth.
    ((word ^ sp.rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - STACK_BITS)) as usize
}
