//! Numbers that look random and are the same in every run.

/// xorshift64 (Marsaglia, 2003). The seed must not be 0.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.word() >> 11) as usize % limit
    }

    /// Replaces one byte.
    pub fn damage(&mut self, bytes: &mut [u8]) {
        let at = self.below(bytes.len());
        bytes[at] = self.below(256) as u8;
    }
}
