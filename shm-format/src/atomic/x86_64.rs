//! Same-thread read-modify-writes for x86-64, one instruction each without the `lock` prefix; and 16-byte stores into
//! shared memory, which the compiler does not generate for atomic stores.
//!
//! Signals are delivered between instructions, so one instruction is atomic with respect to the handlers of its thread.
//! x86-64 stores have release semantics, and neither `asm!` block is `nomem`, so the compiler moves no memory access
//! across them: both have release ordering for other processors.

use super::{AtomicU64, Ordering};
use core::arch::asm;

/// Replaces `old` by `new` if the word holds `old`; returns whether it did.
#[inline(always)]
pub(crate) fn local_compare_exchange(word: &AtomicU64, old: u64, new: u64) -> bool {
    let seen: u64;
    // SAFETY: the pointer comes from a live reference to an aligned word with interior mutability, and the instruction
    // touches only that word, rax and the flags.
    unsafe {
        asm!(
            "cmpxchg qword ptr [{word}], {new}",
            word = in(reg) word.as_ptr(),
            new = in(reg) new,
            inout("rax") old => seen,
            options(nostack),
        );
    }
    seen == old
}

/// Adds to the word (wrapping) and returns what it holds then, which may include what a signal handler has added since:
/// `xadd` would exclude that, and takes twice as many micro-operations.
#[inline(always)]
pub(crate) fn local_add(word: &AtomicU64, value: u64) -> u64 {
    // SAFETY: the pointer comes from a live reference to an aligned word with interior mutability, and the instruction
    // touches only that word, one register and the flags.
    unsafe {
        asm!(
            "add qword ptr [{word}], {value}",
            word = in(reg) word.as_ptr(),
            value = in(reg) value,
            options(nostack),
        );
    }
    word.load(Ordering::Relaxed)
}

/// Loads the word's cache line for a later access.
#[inline(always)]
pub(crate) fn prefetch(word: &AtomicU64) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch cannot fault and affects caches only.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(word.as_ptr().cast()) }
}

/// `then` if both words are equal, else `other`. Never a branch: the compiler turns every other way to write it into
/// one.
#[inline(always)]
pub(crate) fn if_equal(one: u64, two: u64, then: u8, other: u8) -> u8 {
    let mut chosen = u32::from(then);
    // SAFETY: only registers and the flags are touched.
    unsafe {
        asm!(
            "cmp {one}, {two}",
            "cmovne {chosen:e}, {other:e}",
            one = in(reg) one,
            two = in(reg) two,
            chosen = inout(reg) chosen,
            other = in(reg) u32::from(other),
            options(pure, nomem, nostack),
        );
    }
    chosen as u8
}

/// Stores values into words, in any order. Stops at the end of the shorter slice.
#[inline]
pub(crate) fn store_words(words: &[AtomicU64], values: &[u64]) {
    let words = words.get(..values.len()).unwrap_or(words);
    // SAFETY: both slices have been cut to the same length.
    unsafe { store_bytes(words, values.as_ptr().cast()) };
}

/// Stores bytes into all words, eight bytes per little-endian word, in any order.
///
/// # Safety
/// `from` must point to eight readable bytes per word.
#[inline(always)]
pub(crate) unsafe fn store_bytes(words: &[AtomicU64], from: *const u8) {
    const BLOCK: usize = 4;
    let to: *const AtomicU64 = words.as_ptr();
    let blocks = words.len() & !(BLOCK - 1);
    if blocks > 0 {
        // SAFETY: both sides have 8 * blocks bytes; `at` counts up from minus that number to 0, relative to their ends.
        // The words have interior mutability. Besides them only two vector registers and the flags change.
        unsafe {
            asm!(
                "2:",
                "movups {low}, [{from} + {at}]",
                "movups {high}, [{from} + {at} + 16]",
                "movups [{to} + {at}], {low}",
                "movups [{to} + {at} + 16], {high}",
                "add {at}, 32",
                "jnz 2b",
                from = in(reg) from.add(8 * blocks),
                to = in(reg) to.add(blocks),
                at = inout(reg) (8 * blocks).wrapping_neg() => _,
                low = out(xmm_reg) _,
                high = out(xmm_reg) _,
                options(nostack),
            );
        }
    }
    let mut at = blocks;
    while at < words.len() {
        // SAFETY: `at` is less than the length of both.
        unsafe {
            let value = from.cast::<u64>().add(at).read_unaligned();
            (*to.add(at)).store(value, Ordering::Relaxed);
        }
        at += 1;
    }
}
