//! What the stack of a lock says beside its frames: how long its thread waited, or for whose wait it was the end.

const HOLDER: u64 = 1 << 63;
const LINK_BITS: u32 = 20;
const WAIT_BITS: u32 = 43;
/// Ticks, or nanoseconds, of a unit of waiting.
const UNIT: u64 = 16;
const MOST: u64 = (1 << WAIT_BITS) - 1;

/// The nonce of a stack at a lock: `holder:1 | link:20 | wait:43`.
///
/// A wait that was ended by somebody who was seen has a link; so has the stack of whoever gave the lock up, woke the
/// waiter, or came last. Links are used again: the nearest in time are meant. The agent counts ticks of its clock, a profile
/// nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockNonce(pub u64);

impl LockNonce {
    /// The largest link; 0 is none.
    pub const MOST_LINKS: u32 = (1 << LINK_BITS) - 1;

    /// Of a thread that waited for so long.
    #[must_use]
    pub const fn wait(time: u64, link: u32) -> Self {
        let units = time / UNIT;
        let units = if units < MOST { units } else { MOST };
        Self(((link & Self::MOST_LINKS) as u64) << WAIT_BITS | units)
    }

    /// Of a thread that ended the waits of this link.
    #[must_use]
    pub const fn holder(link: u32) -> Self {
        Self(HOLDER | ((link & Self::MOST_LINKS) as u64) << WAIT_BITS)
    }

    /// True for the stack of whoever ended a wait.
    #[must_use]
    pub const fn is_holder(self) -> bool {
        self.0 & HOLDER != 0
    }

    /// The link; 0 for none.
    #[must_use]
    pub const fn link(self) -> u32 {
        (self.0 >> WAIT_BITS) as u32 & Self::MOST_LINKS
    }

    /// The time waited.
    #[must_use]
    pub const fn time(self) -> u64 {
        (self.0 & MOST) * UNIT
    }

    /// The same with the time in another unit.
    #[must_use]
    pub fn in_units(self, convert: impl FnOnce(u64) -> u64) -> Self {
        if self.is_holder() { self } else { Self::wait(convert(self.time()), self.link()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_links_come_back() {
        let wait = LockNonce::wait(12_345, 77);
        assert_eq!((wait.is_holder(), wait.link(), wait.time()), (false, 77, 12_336));
        let holder = LockNonce::holder(LockNonce::MOST_LINKS);
        assert_eq!((holder.is_holder(), holder.link(), holder.time()), (true, LockNonce::MOST_LINKS, 0));
        assert_eq!(LockNonce::wait(u64::MAX, 0).time(), MOST * UNIT);
        assert_eq!(LockNonce::wait(0, LockNonce::MOST_LINKS + 1).0, 0);
    }

    #[test]
    fn units_change_for_waits_alone() {
        assert_eq!(LockNonce::wait(32_000, 5).in_units(|ticks| ticks / 2), LockNonce::wait(16_000, 5));
        assert_eq!(LockNonce::holder(5).in_units(|_| 1 << 20), LockNonce::holder(5));
    }
}
