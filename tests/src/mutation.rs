//! Mutations of inputs, the same in every run.

use std::path::Path;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as usize % limit.max(1)
    }

    /// Modifies, removes, duplicates or inserts some bytes, one to `most` times.
    fn mutate(&mut self, bytes: &mut Vec<u8>, most: usize) {
        for _ in 0..=self.below(most) {
            let at = self.below(bytes.len());
            let end = (at + 1 + self.below(16)).min(bytes.len());
            match self.below(6) {
                0 if at < end => drop(bytes.drain(at..end)),
                1 if at < end => bytes.extend_from_within(at..end),
                2 => bytes.insert(at, self.below(256) as u8),
                3 if at < end => bytes[at] = [0, 1, 0xff, 0x80, 0x7f, 0x0a, 0x0b][self.below(7)],
                _ if at < end => bytes[at] ^= 1 << self.below(8),
                _ => bytes.push(self.below(256) as u8),
            }
        }
    }
}

/// Gives each file of a fuzzer's corpus to `entry`, and `count` mutations of it, each of up to `most` steps.
pub fn try_corpus(corpus: &Path, (count, most): (usize, usize), entry: fn(&[u8])) {
    let files = std::fs::read_dir(corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
    let mut files: Vec<_> = files.map(|file| file.expect("a directory entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", corpus.display());
    let mut random = Random(0x5eed_f00d);
    for file in files {
        let seed = std::fs::read(&file).expect("a file of the corpus");
        entry(&seed);
        for _ in 0..count {
            let mut mutated = seed.clone();
            random.mutate(&mut mutated, most);
            entry(&mutated);
        }
    }
}
