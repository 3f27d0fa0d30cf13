//! Raw stacks, counted while samples stream past.
//!
//! Two samples share a raw stack if process, mapping epoch, addresses and end are the same. Names come later,
//! once per raw stack.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A multiply-and-rotate hash over words. The words are addresses of a program that is profiled at the
/// user's own wish; flooding it on purpose only slows this report.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct WordHasher(u64);

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

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        // The high bits are mixed best, the table takes the low ones too.
        self.0 ^ self.0 >> 32
    }
}

/// A map keyed by words.
pub(super) type WordMap<K, V> = HashMap<K, V, BuildHasherDefault<WordHasher>>;

/// Slices of words kept once and numbered.
#[derive(Debug, Default)]
pub(super) struct Interned {
    numbers: WordMap<Box<[u64]>, u32>,
}

impl Interned {
    /// The number of `words`, and whether they are new.
    pub(super) fn intern(&mut self, words: &[u64]) -> (u32, bool) {
        if let Some(&number) = self.numbers.get(words) {
            return (number, false);
        }
        let number = self.numbers.len() as u32;
        self.numbers.insert(words.into(), number);
        (number, true)
    }

    /// All slices in the order of their numbers.
    pub(super) fn into_list(self) -> Vec<Box<[u64]>> {
        let mut list: Vec<_> = self.numbers.into_iter().collect();
        list.sort_unstable_by_key(|&(_, number)| number);
        list.into_iter().map(|(words, _)| words).collect()
    }
}

/// A raw stack: process, mapping epoch and end, then the addresses in the kernel and the frame words, leaf first.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawStack<'a> {
    /// Place in the profile's processes.
    pub(super) process: u32,
    /// Epoch of the process's mapping history.
    pub(super) epoch: u32,
    /// Why the walk ended.
    pub(super) end: u8,
    /// Addresses in the kernel.
    pub(super) kernel: &'a [u64],
    /// Frame words.
    pub(super) frames: &'a [u64],
}

impl<'a> RawStack<'a> {
    /// Writes the stack as words.
    pub(super) fn encode(&self, words: &mut Vec<u64>) {
        words.clear();
        let kernel = self.kernel.len() as u64;
        words.extend([
            u64::from(self.process) << 32 | u64::from(self.epoch),
            u64::from(self.end) | kernel << 8,
        ]);
        words.extend_from_slice(self.kernel);
        words.extend_from_slice(self.frames);
    }

    /// Reads what [`RawStack::encode`] wrote.
    pub(super) fn decode(words: &'a [u64]) -> Self {
        let (head, rest) = words.split_at(2);
        let (kernel, frames) = rest.split_at((head[1] >> 8) as usize);
        RawStack {
            process: (head[0] >> 32) as u32,
            epoch: head[0] as u32,
            end: head[1] as u8,
            kernel,
            frames,
        }
    }
}
