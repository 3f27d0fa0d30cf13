//! The walk before as a list of words, for when it comes again from the same leaf.
//!
//! A program that is busy in one place is sampled there again and again, on the same stack. When all frames of a walk are
//! those of the walk before, up to the root and all by simple steps, the words that they hang on are put into one list:
//! each return address, and a saved frame pointer only if a step goes by it, which in most code none does. If the next
//! walk begins at the same leaf and all words are what they were, so are all its frames.
//!
//! What is listed has just been compared, word for word. A list never outlives the walk that it was made of.

use crate::memory::Memory;
use crate::x86_64::{Registers, WORD};

/// Most words of a list. A walk that hangs on more is compared frame by frame.
const CAPACITY: usize = 512;

/// The words, or nothing.
#[repr(C)]
pub(crate) struct Repeat {
    pc: u64,
    sp: u64,
    fp: u64,
    /// A step goes by the frame pointer that the leaf has.
    needs_fp: bool,
    /// Words; 0 if nothing is listed.
    count: usize,
    slots: [u64; CAPACITY],
    words: [u64; CAPACITY],
}

/// A simple step, as it is listed.
pub(crate) struct Step {
    /// Where the return address is, and what it is.
    pub(crate) address: (u64, u64),
    /// Where the frame pointer was saved, and what it was.
    pub(crate) saved: Option<(u64, u64)>,
    /// The step itself may go by the frame pointer.
    pub(crate) by_fp: bool,
}

impl Repeat {
    /// Nothing.
    pub(crate) const fn new() -> Self {
        Self { pc: 0, sp: 0, fp: 0, needs_fp: false, count: 0, slots: [0; CAPACITY], words: [0; CAPACITY] }
    }

    /// Forgets what is listed.
    pub(crate) fn forget(&mut self) {
        self.count = 0;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Lists the words of a walk from `leaf` by these steps, whose slots grow. Nothing if they are too many.
    #[cold]
    #[inline(never)]
    pub(crate) fn list(&mut self, leaf: &Registers, steps: impl Iterator<Item = Step>) {
        (self.pc, self.sp, self.fp) = (leaf.pc, leaf.sp(), leaf.fp());
        self.needs_fp = false;
        let (mut count, mut has_leaf_fp, mut saved) = (0, true, None);
        let mut push = |(slot, word): (u64, u64)| {
            if count < CAPACITY {
                (self.slots[count], self.words[count]) = (slot, word);
            }
            count += 1;
        };
        for step in steps {
            if step.by_fp {
                self.needs_fp |= has_leaf_fp;
                // Once is enough.
                if let Some(saved) = saved.take() {
                    push(saved);
                }
            }
            if step.saved.is_some() {
                (saved, has_leaf_fp) = (step.saved, false);
            }
            // The last: `repeats` relies on it.
            push(step.address);
        }
        self.count = if count <= CAPACITY { count } else { 0 };
    }

    /// Whether a walk from `leaf` comes to the same frames.
    #[inline]
    pub(crate) fn repeats<M: Memory>(&self, leaf: &Registers, memory: &mut M) -> bool {
        let (slots, words) = (self.slots.get(..self.count), self.words.get(..self.count));
        let (slots, words) = (slots.unwrap_or(&[]), words.unwrap_or(&[]));
        let Some(last) = slots.last() else { return false };
        if leaf.pc != self.pc || leaf.sp() != self.sp || self.needs_fp && leaf.fp() != self.fp {
            return false;
        }
        if *last >= memory.known_until(self.sp).saturating_sub(WORD - 1) {
            return false;
        }
        // SAFETY: slots of simple steps grow from the leaf's stack pointer on, and frame pointers are saved below the slot of
        // the same step. From there to behind the last slot all memory is known.
        unsafe { unchanged(slots, words, memory) == slots.len() }
    }
}

/// How many words, from the first on, are in their slots. Four at a time: the loop's own instructions are as many as those
/// of one.
///
/// # Safety
/// All slots are in memory that is known to be readable, and seven bytes before its end.
#[inline(never)]
pub(crate) unsafe fn unchanged<M: Memory>(slots: &[u64], words: &[u64], memory: &mut M) -> usize {
    // SAFETY: the caller's promise.
    let mut holds = |slot: &u64, word: &u64| unsafe { memory.load(*slot) == *word };
    let (slots_by_four, _) = slots.as_chunks();
    let (words_by_four, _) = words.as_chunks();
    let mut held = 0;
    for ([s0, s1, s2, s3], [w0, w1, w2, w3]) in slots_by_four.iter().zip(words_by_four) {
        if !(holds(s0, w0) && holds(s1, w1) && holds(s2, w2) && holds(s3, w3)) {
            break;
        }
        held += 4;
    }
    let rest = slots.iter().zip(words).skip(held);
    held + rest.take_while(|(slot, word)| holds(slot, word)).count()
}
