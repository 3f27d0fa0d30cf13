//! The brief form of the fuzzer of profile files: the corpus, and mutations of it from a fixed seed. `tests/fuzz` has
//! the long form.

use std::path::Path;

#[path = "fuzz/profile.rs"]
mod entry;

/// Mutations of each file of the corpus.
const MUTATIONS: usize = 30;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as usize % limit.max(1)
    }

    /// Changes, removes, doubles or adds some bytes.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            let end = (at + 1 + self.below(16)).min(bytes.len());
            match self.below(6) {
                0 if at < end => drop(bytes.drain(at..end)),
                1 if at < end => bytes.extend_from_within(at..end),
                2 => bytes.insert(at, self.below(256) as u8),
                3 if at < end => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                _ if at < end => bytes[at] ^= 1 << self.below(8),
                _ => bytes.push(self.below(256) as u8),
            }
        }
    }
}

#[test]
fn profile() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus/profile");
    let mut files: Vec<_> = std::fs::read_dir(&corpus).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    let mut random = Random(0x5eed_f00d);
    for file in files {
        let seed = std::fs::read(&file).unwrap();
        entry::profile(&seed);
        for _ in 0..MUTATIONS {
            let mut mutated = seed.clone();
            random.mutate(&mut mutated);
            entry::profile(&mutated);
        }
    }
}
