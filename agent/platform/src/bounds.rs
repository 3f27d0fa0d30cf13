//! An address range.

/// An address range that stays mapped while its thread lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The first address.
    pub low: u64,
    /// The address after the last.
    pub high: u64,
}

impl Bounds {
    /// No known range.
    pub const NONE: Bounds = Bounds { low: 0, high: 0 };

    /// Whether the eight bytes at `address` lie inside.
    #[inline]
    pub fn hold(self, address: u64) -> bool {
        self.low <= address && address < self.high && self.high - address >= 8
    }
}
