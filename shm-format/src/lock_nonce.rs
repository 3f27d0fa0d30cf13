//! The nonce of a stack taken at a lock: how long its thread waited, or which wait it ended.

const HOLDER: u64 = 1 << 63;
const LINK_BITS: u32 = 20;
const WAIT_BITS: u32 = 43;
/// Resolution of the waiting time, in ticks or nanoseconds.
const UNIT: u64 = 16;
const MOST: u64 = (1 << WAIT_BITS) - 1;

/// The nonce of a stack at a lock: `holder:1 | link:20 | wait:43`.
///
/// A link joins a wait with the stack of the thread that ended it, if one was seen: the one that released the lock,
/// woke the waiter, or arrived last at a barrier. Link numbers are reused: the pair that is closest in time belongs
/// together. The agent measures waits in ticks of its clock, a profile in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockNonce(pub u64);

impl LockNonce {
    /// Largest link number; 0 means none.
    pub const MOST_LINKS: u32 = (1 << LINK_BITS) - 1;

    /// For a thread that waited this long.
    #[must_use]
    pub const fn wait(time: u64, link: u32) -> Self {
        let units = time / UNIT;
        let units = if units < MOST { units } else { MOST };
        Self(((link & Self::MOST_LINKS) as u64) << WAIT_BITS | units)
    }

    /// For the thread that ended the waits with this link.
    #[must_use]
    pub const fn holder(link: u32) -> Self {
        Self(HOLDER | ((link & Self::MOST_LINKS) as u64) << WAIT_BITS)
    }

    /// Whether this is the stack of a thread that ended a wait.
    #[must_use]
    pub const fn is_holder(self) -> bool {
        self.0 & HOLDER != 0
    }

    /// The link; 0 for none.
    #[must_use]
    pub const fn link(self) -> u32 {
        (self.0 >> WAIT_BITS) as u32 & Self::MOST_LINKS
    }

    /// The waiting time.
    #[must_use]
    pub const fn time(self) -> u64 {
        (self.0 & MOST) * UNIT
    }

    /// The same with the waiting time converted to another unit.
    #[must_use]
    pub fn in_units(self, convert: impl FnOnce(u64) -> u64) -> Self {
        if self.is_holder() { self } else { Self::wait(convert(self.time()), self.link()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_links_round_trip() {
        let wait = LockNonce::wait(12_345, 77);
        assert_eq!((wait.is_holder(), wait.link(), wait.time()), (false, 77, 12_336));
        let holder = LockNonce::holder(LockNonce::MOST_LINKS);
        assert_eq!((holder.is_holder(), holder.link(), holder.time()), (true, LockNonce::MOST_LINKS, 0));
        assert_eq!(LockNonce::wait(u64::MAX, 0).time(), MOST * UNIT);
        assert_eq!(LockNonce::wait(0, LockNonce::MOST_LINKS + 1).0, 0);
    }

    #[test]
    fn only_waits_are_converted() {
        assert_eq!(LockNonce::wait(32_000, 5).in_units(|ticks| ticks / 2), LockNonce::wait(16_000, 5));
        assert_eq!(LockNonce::holder(5).in_units(|_| 1 << 20), LockNonce::holder(5));
    }
}
