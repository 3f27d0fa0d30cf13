//! How far the return address of a frame is from that of the frame before, by the latter: in most code a constant.
//!
//! All threads share the table. It helps to look at the frames of a stack without walking it; what it says is a guess, and
//! whoever uses it compares afterwards.

use core::sync::atomic::{AtomicU64, Ordering};

/// log2 of the number of addresses; two that hash alike cannot both be known.
const BITS: u32 = 13;
/// In place of a distance: it varies, or is too far.
const VARIES: u64 = u16::MAX as u64;

/// `address:48 | words:16`; 0 is free.
static DISTANCES: [AtomicU64; 1 << BITS] = [const { AtomicU64::new(0) }; 1 << BITS];

fn entry(address: u64) -> Option<&'static AtomicU64> {
    // Fibonacci hashing.
    DISTANCES.get((address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - BITS)) as usize)
}

/// Words from this return address on the stack to the next one, if that is known and does not vary.
#[inline(always)]
pub(crate) fn after(address: u64) -> Option<u64> {
    let known = entry(address)?.load(Ordering::Relaxed);
    let words = known & VARIES;
    (known >> 16 == address << 16 >> 16 && words != VARIES).then_some(words)
}

/// Notes that the next return address is `words` words away.
pub(crate) fn note(address: u64, words: u16) {
    let Some(entry) = entry(address) else { return };
    let (known, new) = (entry.load(Ordering::Relaxed), address << 16 | u64::from(words));
    if known == 0 {
        entry.store(new, Ordering::Relaxed);
    } else if known >> 16 == new >> 16 && known != new {
        entry.store(known | VARIES, Ordering::Relaxed);
    }
}
