//! The numbers of the functions that frames refer to, and which functions have been announced.
//!
//! A function is recognised by a hash of its identity (its address and what is there, see the interpreter's modules) and of
//! the region it was announced in, because memory is reused and each region gets its own announcements. All threads share
//! the table. An entry is one word, so none is ever seen half-written. A function that two threads meet at the same time
//! gets two numbers, which the reader treats as one. Few programs need more than the first part of the table, so few have memory
//! for the second.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use unwind::Interpreted;

/// Entries of each part, powers of two.
const FIRST: usize = 1 << 14;
const SECOND: usize = 1 << 16;
/// Entries of each part that a function may occupy.
const WAYS: usize = 4;
const NUMBER_BITS: u32 = 28;

/// `hash:36 | number:28`; 0 is free. The hash is the highest bits of the key; the lowest choose the entry.
static TABLE: ([AtomicU64; FIRST], [AtomicU64; SECOND]) =
    ([const { AtomicU64::new(0) }; FIRST], [const { AtomicU64::new(0) }; SECOND]);
static LAST: AtomicU32 = AtomicU32::new(0);

/// The key of a function.
#[derive(Clone, Copy)]
pub(crate) struct Key(u64);

impl Key {
    /// The start of a key for functions in a region.
    pub(crate) fn new(nonce: u64) -> Self {
        Self(nonce)
    }

    /// Mixes in another word of the identity.
    #[inline]
    pub(crate) fn and(self, word: u64) -> Self {
        let product = u128::from((self.0 ^ word).rotate_left(29)) * 0x9e37_79b9_7f4a_7c15;
        Self(product as u64 ^ (product >> 64) as u64 ^ word)
    }

    /// All bits of it.
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    fn entries(self) -> impl Iterator<Item = &'static AtomicU64> {
        let index = self.0 as usize;
        let first = (0..WAYS).filter_map(move |way| TABLE.0.get((index ^ way) % FIRST));
        first.chain((0..WAYS).filter_map(move |way| TABLE.1.get((index ^ way) % SECOND)))
    }

    fn tag(self) -> u64 {
        self.0 >> NUMBER_BITS << NUMBER_BITS
    }
}

/// The function's number, if it has been announced.
#[inline]
pub(crate) fn find(key: Key) -> Option<u32> {
    let number = |word: u64| (word as u32) & Interpreted::MOST_FUNCTIONS;
    let mut words = key.entries().map(|entry| entry.load(Ordering::Relaxed));
    words.find(|&word| word != 0 && word >> NUMBER_BITS == key.tag() >> NUMBER_BITS).map(number)
}

/// A new number; `None` after the last.
pub(crate) fn next() -> Option<u32> {
    let number = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    (number != 0 && number <= Interpreted::MOST_FUNCTIONS).then_some(number)
}

/// Remembers that the function was announced with this number. May replace another function.
pub(crate) fn remember(key: Key, number: u32) {
    let word = key.tag() | u64::from(number);
    let free = key.entries().find(|entry| entry.load(Ordering::Relaxed) == 0);
    if let Some(entry) = free.or_else(|| key.entries().nth(number as usize % (2 * WAYS))) {
        entry.store(word, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_found_by_all_of_its_key() {
        let key = |nonce: u64, words: &[u64]| words.iter().fold(Key::new(nonce), |key, &word| key.and(word));
        assert_eq!(find(key(7, &[1, 2, 3])), None);
        let number = next().unwrap();
        remember(key(7, &[1, 2, 3]), number);
        assert_eq!(find(key(7, &[1, 2, 3])), Some(number));
        for other in [key(8, &[1, 2, 3]), key(7, &[2, 1, 3]), key(7, &[1, 2]), key(7, &[1, 2, 4])] {
            assert_eq!(find(other), None);
        }
        // A replaced function is announced again, so any entry that is found is valid.
        for word in 0..2 * SECOND as u64 {
            let number = next().unwrap();
            remember(key(9, &[word]), number);
            assert_eq!(find(key(9, &[word])), Some(number));
        }
    }
}
