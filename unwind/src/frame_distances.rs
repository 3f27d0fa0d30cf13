//! How far the return address of a frame is from that of the frame before, by the latter: in most code a constant.
//!
//! All threads share the table. It helps to look at the frames of a stack without walking it; what it says is a guess, and
//! whoever uses it compares afterwards.

use core::sync::atomic::{AtomicU64, Ordering};

/// log2 of the number of sets.
const SET_BITS: u32 = 12;
/// Addresses that hash alike.
const WAYS: usize = 4;
/// In place of a distance: it varies, or is too far.
const VARIES: u64 = u16::MAX as u64;

/// `address:48 | words:16`; 0 is free.
static DISTANCES: [[AtomicU64; WAYS]; 1 << SET_BITS] =
    [const { [const { AtomicU64::new(0) }; WAYS] }; 1 << SET_BITS];

#[inline(always)]
fn set(address: u64) -> Option<&'static [AtomicU64; WAYS]> {
    // Fibonacci hashing.
    DISTANCES.get((address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SET_BITS)) as usize)
}

/// Words from this return address on the stack to the next one, if that is known and does not vary.
#[inline(always)]
pub(crate) fn after(address: u64) -> Option<u64> {
    let known = set(address)?.iter().map(|entry| entry.load(Ordering::Relaxed));
    let words = known.into_iter().find(|known| known >> 16 == address << 16 >> 16)? & VARIES;
    (words != VARIES).then_some(words)
}

/// Notes that the next return address is `words` words away. Without effect if there is no room.
pub(crate) fn note(address: u64, words: u16) {
    let new = address << 16 | u64::from(words);
    for entry in set(address).into_iter().flatten() {
        match entry.load(Ordering::Relaxed) {
            0 => return entry.store(new, Ordering::Relaxed),
            known if known >> 16 == new >> 16 => {
                if known != new {
                    entry.store(known | VARIES, Ordering::Relaxed);
                }
                return;
            }
            _ => {}
        }
    }
}
