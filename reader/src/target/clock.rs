//! Clocks, and the conversion of a region's ticks to nanoseconds of CLOCK_MONOTONIC.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use shm_format::{Anchor, ClockKind, Scale};

use crate::target::attach::read_tsc;
use crate::time_namespace;

/// CLOCK_MONOTONIC, nanoseconds, as in the initial time namespace.
pub(crate) fn monotonic_ns() -> u64 {
    time_namespace::own().initial_monotonic(nanoseconds(ClockId::CLOCK_MONOTONIC))
}

/// Nanoseconds since 1970.
pub(crate) fn realtime_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_REALTIME)
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    Duration::from_nanos(nanoseconds(ClockId::CLOCK_THREAD_CPUTIME_ID))
}

fn nanoseconds(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// Readings of the time-stamp counter, from which its rate is determined: the longer the recording, the more precisely.
pub(crate) struct TraceClock {
    first: Anchor,
    now: Anchor,
}

impl TraceClock {
    /// Takes the first reading.
    pub(crate) fn start() -> Self {
        let first = read_anchor();
        Self { first, now: first }
    }

    /// Takes a reading. Returns its CLOCK_MONOTONIC nanoseconds.
    pub(crate) fn refresh(&mut self) -> u64 {
        self.now = read_anchor();
        self.now.monotonic_ns
    }

    /// CLOCK_MONOTONIC nanoseconds of the last reading.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now.monotonic_ns
    }

    /// The conversion from a region's ticks to nanoseconds. `anchors` are the region's own readings.
    pub(crate) fn scale(&self, kind: ClockKind, anchors: impl IntoIterator<Item = Anchor>) -> Option<Scale> {
        match kind {
            ClockKind::Monotonic => {
                Some(Scale::nanoseconds(Anchor { ticks: 0, monotonic_ns: 0, realtime_ns: 0 }))
            }
            ClockKind::Tsc => Scale::of(kind, [self.first, self.now].into_iter().chain(anchors)),
        }
    }
}

/// The tightest of a few readings: an interruption between the two clocks would distort the scale.
fn read_anchor() -> Anchor {
    let reading = || {
        let before = read_tsc();
        let monotonic_ns = monotonic_ns();
        let after = read_tsc();
        let gap = after.saturating_sub(before);
        (gap, Anchor { ticks: before + gap / 2, monotonic_ns, realtime_ns: realtime_ns() })
    };
    (0..5).map(|_| reading()).min_by_key(|(gap, _)| *gap).map_or_else(Anchor::default, |(_, anchor)| anchor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_now_are_nanoseconds_of_now() {
        let mut clock = TraceClock::start();
        while clock.now.monotonic_ns < clock.first.monotonic_ns + 1_000_000 {
            clock.refresh();
        }
        let scale = clock.scale(ClockKind::Tsc, []).expect("two readings a millisecond apart");
        let (before, ticks, after) = (monotonic_ns(), read_tsc(), monotonic_ns());
        let ns = scale.monotonic_ns(ticks);
        assert!(before.saturating_sub(100_000) <= ns && ns <= after + 100_000, "{before} {ns} {after}");
        assert_eq!(clock.scale(ClockKind::Monotonic, []).unwrap().monotonic_ns(77), 77);
    }
}
