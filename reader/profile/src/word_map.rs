//! Maps keyed by words: addresses, and numbers given out here.
//!
//! The words come from a program that is profiled at the user's own wish; flooding a table on purpose only
//! slows this report.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map keyed by words.
pub(crate) type WordMap<K, V> = HashMap<K, V, BuildHasherDefault<WordHasher>>;

/// A hash over words: the halves of products, so that all bits of all words matter to the few that a table takes.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct WordHasher(u64);

impl Hasher for WordHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.write_u64(u64::from_le_bytes(word.try_into().unwrap_or_default()));
        }
        for &byte in words.remainder() {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = folded(self.0 ^ word ^ SEED, FACTOR);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Odd numbers without a pattern.
const SEED: u64 = 0x243f_6a88_85a3_08d3;
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The halves of a product, one over the other.
pub(crate) fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::{BuildHasher, BuildHasherDefault};

    /// As tables meet them: small numbers beside addresses that differ in a few bits in the middle.
    #[test]
    fn keys_spread_over_all_bits() {
        let hasher = BuildHasherDefault::<WordHasher>::default();
        let keys = (0..64_u32).flat_map(|n| (0..64_u64).map(move |at| (n, 0x5555_0000_0000 + 256 * at)));
        let hashes: Vec<u64> = keys.map(|key| hasher.hash_one(key)).collect();
        for shift in [0, 20, 40, 52] {
            let parts: HashSet<u64> = hashes.iter().map(|hash| hash >> shift & 0xfff).collect();
            // 4096 keys thrown at 4096 places miss one in e of them.
            assert!(parts.len() > 2400, "bits from {shift}: {} of 4096", parts.len());
        }
    }
}
