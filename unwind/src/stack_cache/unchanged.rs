//! Compares the stack with what the previous walk found there.

use crate::arch::native::{self, ABOVE_BITS};
use crate::memory::Memory;
use crate::rule_cache::FastRule;

/// Returns how many return addresses, counted from the first, are unchanged at the addresses given by slots and rules.
///
/// # Safety
/// The words at all slots must be in memory that is known to be readable; so must the words below them where these
/// rules have the return address.
#[inline(never)]
pub(super) unsafe fn unchanged<M: Memory>(slots: &[u64], by: &[u64], words: &[u64], memory: &mut M) -> usize {
    if ABOVE_BITS == 0 {
        // SAFETY: the caller guarantees it.
        return unsafe { compared(slots, slots, words, |slot, _| slot, native::strip, memory) };
    }
    let address = |slot: u64, by: u64| slot.wrapping_sub(FastRule::from_bits(by).above());
    // SAFETY: the caller guarantees it.
    unsafe { compared(slots, by, words, address, native::strip, memory) }
}

/// Returns how many saved frame pointers, counted from the first, are unchanged at the addresses given by slots and
/// rules.
///
/// # Safety
/// As for [`unchanged`], but for the words below the slots where these rules have the frame pointer.
#[inline(never)]
pub(super) unsafe fn fps_unchanged<M: Memory>(
    slots: &[u64],
    by: &[u64],
    fps: &[u64],
    memory: &mut M,
) -> usize {
    let saved_slot = |slot: u64, by: u64| slot.wrapping_sub(FastRule::from_bits(by).reach());
    // SAFETY: the caller guarantees it.
    unsafe { compared(slots, by, fps, saved_slot, |word| word, memory) }
}

/// Returns how many words, counted from the first, are unchanged at their addresses, after `meaning` is applied to what
/// memory has. Compares four at a time, which divides the loop's overhead by four.
///
/// # Safety
/// The words at all addresses must be in memory that is known to be readable.
#[inline(always)]
unsafe fn compared<M: Memory>(
    slots: &[u64],
    by: &[u64],
    words: &[u64],
    address: impl Fn(u64, u64) -> u64,
    meaning: impl Fn(u64) -> u64,
    memory: &mut M,
) -> usize {
    // SAFETY: the caller guarantees it.
    let mut holds =
        |slot: u64, by: u64, word: u64| unsafe { meaning(memory.load(address(slot, by))) == word };
    let (slots_by_four, _) = slots.as_chunks();
    let (by_by_four, _) = by.as_chunks();
    let (words_by_four, _) = words.as_chunks();
    let mut count = 0;
    for (([s0, s1, s2, s3], [b0, b1, b2, b3]), [w0, w1, w2, w3]) in
        slots_by_four.iter().zip(by_by_four).zip(words_by_four)
    {
        if !(holds(*s0, *b0, *w0) && holds(*s1, *b1, *w1) && holds(*s2, *b2, *w2) && holds(*s3, *b3, *w3)) {
            break;
        }
        count += 4;
    }
    let rest = slots.iter().zip(by).zip(words).skip(count);
    count + rest.take_while(|((slot, by), word)| holds(**slot, **by, **word)).count()
}
