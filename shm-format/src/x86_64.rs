//! Same-thread read-modify-writes for x86-64: one instruction each, without the `lock` prefix.
//!
//! A signal is delivered between instructions, so one instruction is atomic against every handler of its thread.
//! Stores of x86-64 are release stores, and neither `asm!` block is `nomem`, so the compiler moves no memory access
//! across them: both have release ordering for other processors.

use crate::atomic::AtomicU64;
use core::arch::asm;

/// Replaces `old` by `new` if the word still holds `old`; says whether it did.
#[inline(always)]
pub(crate) fn local_compare_exchange(word: &AtomicU64, old: u64, new: u64) -> bool {
    let seen: u64;
    // SAFETY: the pointer comes from a live reference to an aligned word with interior mutability, and the
    // instruction touches only that word, rax and the flags.
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

/// Adds to the word (wrapping) and returns the value before.
#[inline(always)]
pub(crate) fn local_add(word: &AtomicU64, value: u64) -> u64 {
    let mut amount = value;
    // SAFETY: as above: an aligned live word, and only that word, one register and the flags are touched.
    unsafe {
        asm!(
            "xadd qword ptr [{word}], {amount}",
            word = in(reg) word.as_ptr(),
            amount = inout(reg) amount,
            options(nostack),
        );
    }
    amount
}
