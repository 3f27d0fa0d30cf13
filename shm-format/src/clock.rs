//! The trace clock: which counter gives the ticks, and how ticks become nanoseconds.
//!
//! Writers only ever store raw ticks; all conversion happens in the reader, from pairs of readings (anchors).

/// The counter behind the ticks of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ClockKind {
    /// The invariant time-stamp counter of the processor, raw.
    Tsc = 1,
    /// `CLOCK_MONOTONIC` in nanoseconds: one tick is 1 ns.
    Monotonic = 2,
}

impl ClockKind {
    /// The kind of that number, if there is one.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            1 => Some(Self::Tsc),
            2 => Some(Self::Monotonic),
            _ => None,
        }
    }
}

/// One moment read on three clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anchor {
    /// The trace clock.
    pub ticks: u64,
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub monotonic_ns: u64,
    /// `CLOCK_REALTIME`, nanoseconds since 1970.
    pub realtime_ns: u64,
}

/// A straight line from ticks to `CLOCK_MONOTONIC` nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    origin: Anchor,
    /// Nanoseconds per tick, `FRACTION` fractional bits.
    rate: u64,
}

/// 40 bits: at 3 GHz an hour is off by less than 10 ns.
const FRACTION: u32 = 40;

impl Scale {
    /// The line for a clock whose tick is one nanosecond, anchored for real time at `origin`.
    #[must_use]
    pub const fn nanoseconds(origin: Anchor) -> Self {
        Self { origin, rate: 1 << FRACTION }
    }

    /// The line through two anchors. `None` if they are not apart in both clocks in the same direction, or if the
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

    /// The best line for a region: through the two anchors furthest apart, or the identity for a nanosecond clock.
    /// `None` if the clock needs two anchors and there are not two usable ones.
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

    /// `CLOCK_MONOTONIC` nanoseconds of a tick value, before or after the origin; saturates at the ends of `u64`.
    #[must_use]
    pub fn monotonic_ns(&self, ticks: u64) -> u64 {
        self.line(self.origin.monotonic_ns, ticks)
    }

    /// `CLOCK_REALTIME` nanoseconds of a tick value, as the clock was set at the origin.
    #[must_use]
    pub fn realtime_ns(&self, ticks: u64) -> u64 {
        self.line(self.origin.realtime_ns, ticks)
    }

    /// Nanoseconds in a span of ticks; saturates.
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
    fn a_line_through_two_anchors_meets_both() {
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
    fn unusable_anchors_give_no_line() {
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
