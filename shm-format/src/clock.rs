//! The trace clock: which counter provides the ticks, and how ticks are converted to nanoseconds.
//!
//! Writers only store raw ticks; the reader does all conversion, from readings of several clocks at once (anchors).

/// The counter that a region's ticks come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ClockKind {
    /// The processor's invariant time-stamp counter, raw.
    Tsc = 1,
    /// `CLOCK_MONOTONIC` in nanoseconds: one tick is 1 ns.
    Monotonic = 2,
}

impl ClockKind {
    /// The kind with this number, if there is one.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            1 => Some(Self::Tsc),
            2 => Some(Self::Monotonic),
            _ => None,
        }
    }
}

/// A simultaneous reading of three clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anchor {
    /// The trace clock.
    pub ticks: u64,
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub monotonic_ns: u64,
    /// `CLOCK_REALTIME`, nanoseconds since 1970.
    pub realtime_ns: u64,
}

/// A linear map from ticks to `CLOCK_MONOTONIC` nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    origin: Anchor,
    /// Nanoseconds per tick, with `FRACTION` fractional bits.
    rate: u64,
}

/// With 40 bits, an hour at 3 GHz is off by less than 10 ns.
const FRACTION: u32 = 40;

impl Scale {
    /// The map for a clock of one tick per nanosecond, anchored for real time at `origin`.
    #[must_use]
    pub const fn nanoseconds(origin: Anchor) -> Self {
        Self { origin, rate: 1 << FRACTION }
    }

    /// The map through two anchors. `None` if both clocks have not moved in the same direction between them, or if the
    /// rate is absurd (a tick longer than 16 ms).
    #[must_use]
    pub fn through(first: Anchor, second: Anchor) -> Option<Self> {
        let ticks = second.ticks.checked_sub(first.ticks)?;
        let ns = second.monotonic_ns.checked_sub(first.monotonic_ns)?;
        if ticks == 0 || ns == 0 {
            return None;
        }
        let rate = ((u128::from(ns) << FRACTION) + u128::from(ticks / 2)) / u128::from(ticks);
        if rate == 0 {
            return None;
        }
        Some(Self { origin: first, rate: u64::try_from(rate).ok()? })
    }

    /// The best map for a region: through the two anchors that are furthest apart, or the identity for a nanosecond
    /// clock. `None` if two anchors are needed and no two are usable.
    pub fn of(clock: ClockKind, anchors: impl IntoIterator<Item = Anchor>) -> Option<Self> {
        let mut anchors = anchors.into_iter();
        let first = anchors.next()?;
        let (mut low, mut high) = (first, first);
        for anchor in anchors {
            if anchor.ticks < low.ticks {
                low = anchor;
            }
            if anchor.ticks > high.ticks {
                high = anchor;
            }
        }
        match clock {
            ClockKind::Monotonic => Some(Self::nanoseconds(low)),
            ClockKind::Tsc => Self::through(low, high),
        }
    }

    /// Frequency of the trace clock in Hz.
    #[must_use]
    pub fn frequency(&self) -> u64 {
        u64::try_from((1_000_000_000u128 << FRACTION) / u128::from(self.rate.max(1))).unwrap_or(u64::MAX)
    }

    /// Converts ticks, before or after the origin, to `CLOCK_MONOTONIC` nanoseconds; saturates at the limits of `u64`.
    #[must_use]
    pub fn monotonic_ns(&self, ticks: u64) -> u64 {
        self.line(self.origin.monotonic_ns, ticks)
    }

    /// Converts ticks to `CLOCK_REALTIME` nanoseconds, by the offset between the clocks at the origin.
    #[must_use]
    pub fn realtime_ns(&self, ticks: u64) -> u64 {
        self.line(self.origin.realtime_ns, ticks)
    }

    /// Length of a span of ticks in nanoseconds; saturates.
    #[must_use]
    pub fn span_ns(&self, ticks: u64) -> u64 {
        u64::try_from((u128::from(ticks) * u128::from(self.rate) + (1 << (FRACTION - 1))) >> FRACTION)
            .unwrap_or(u64::MAX)
    }

    fn line(&self, origin_ns: u64, ticks: u64) -> u64 {
        match ticks.checked_sub(self.origin.ticks) {
            Some(after) => origin_ns.saturating_add(self.span_ns(after)),
            None => origin_ns.saturating_sub(self.span_ns(self.origin.ticks - ticks)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Anchor = Anchor { ticks: 1_000, monotonic_ns: 50_000, realtime_ns: 9_000_000 };

    #[test]
    fn a_scale_through_two_anchors_maps_both() {
        let end = Anchor { ticks: 1_000 + 30_000_000, monotonic_ns: 50_000 + 10_000_000, realtime_ns: 0 };
        let scale = Scale::through(START, end).unwrap();
        assert_eq!(scale.monotonic_ns(START.ticks), START.monotonic_ns);
        assert!(scale.monotonic_ns(end.ticks).abs_diff(end.monotonic_ns) <= 1);
        assert_eq!(scale.realtime_ns(1_000 + 3_000), 9_000_000 + 1_000);
        assert!(scale.frequency().abs_diff(3_000_000_000) < 1_000);
        assert_eq!(scale.monotonic_ns(1_000 - 300), 50_000 - 100);
        assert_eq!(scale.monotonic_ns(0), 50_000 - 333);
    }

    #[test]
    fn unusable_anchors_give_no_scale() {
        assert_eq!(Scale::through(START, START), None);
        assert_eq!(Scale::through(Anchor { ticks: 5_000, ..START }, START), None);
        assert_eq!(
            Scale::through(START, Anchor { ticks: 1_001, monotonic_ns: u64::MAX, realtime_ns: 0 }),
            None
        );
        assert_eq!(Scale::of(ClockKind::Tsc, [START]), None);
        assert_eq!(Scale::of(ClockKind::Tsc, []), None);
        assert_eq!(Scale::of(ClockKind::Monotonic, [START]).unwrap().span_ns(7), 7);
    }

    #[test]
    fn extremes_saturate() {
        let scale = Scale::nanoseconds(START);
        assert_eq!(scale.monotonic_ns(u64::MAX), u64::MAX);
    }
}
