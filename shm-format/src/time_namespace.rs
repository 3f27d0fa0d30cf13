//! By how much a process's clocks differ from those of the initial time namespace (time_namespaces(7)).
//!
//! Recorder and agent may be in different ones. What they tell each other is in the time of the initial one.

/// Nanoseconds of a clock tick of /proc (USER_HZ).
const TICK_NS: i64 = 10_000_000;

/// What the clocks of a time namespace show more than those of the initial one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeNamespace {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub monotonic_ns: i64,
    /// Nanoseconds of CLOCK_BOOTTIME.
    pub boottime_ns: i64,
}

impl TimeNamespace {
    /// From /proc/self/timens_offsets: lines of a clock's name, seconds, which may be negative, and nanoseconds. What is missing
    /// there is taken as 0.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        let mut words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let mut namespace = Self::default();
        while let Some(name) = words.next() {
            let clock = match name {
                b"monotonic" => &mut namespace.monotonic_ns,
                b"boottime" => &mut namespace.boottime_ns,
                _ => continue,
            };
            let (seconds, ns) = (words.next().map_or(0, number), words.next().map_or(0, number));
            *clock = seconds.wrapping_mul(1_000_000_000).wrapping_add(ns);
        }
        namespace
    }

    /// A reading of CLOCK_MONOTONIC in this namespace, in nanoseconds, as in the initial one.
    #[must_use]
    pub fn initial_monotonic(self, ns: u64) -> u64 {
        ns.wrapping_sub(self.monotonic_ns as u64)
    }

    /// A process's start time as /proc shows it in this namespace, in clock ticks after boot, as in the initial one.
    #[must_use]
    pub fn initial_start_time(self, ticks: u64) -> u64 {
        ticks.wrapping_sub((self.boottime_ns / TICK_NS) as u64)
    }
}

fn number(word: &[u8]) -> i64 {
    let (sign, digits) = match word {
        [b'-', digits @ ..] => (-1, digits),
        digits => (1, digits),
    };
    let add = |number: i64, digit: &u8| number.wrapping_mul(10).wrapping_add(i64::from(digit & 0xf));
    sign * digits.iter().fold(0, add)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn differences_may_be_negative() {
        let there =
            TimeNamespace::parse(b"monotonic       -5000         7\nboottime       100000         0\n");
        assert_eq!(
            there,
            TimeNamespace { monotonic_ns: -4_999_999_999_993, boottime_ns: 100_000_000_000_000 }
        );
        assert_eq!(there.initial_monotonic(1), 4_999_999_999_994);
        assert_eq!(there.initial_start_time(10_000_123), 123);
        for other in [&b""[..], b"\xff", b"monotonic", b"realtime 1 1\nboottime"] {
            assert_eq!(TimeNamespace::parse(other), TimeNamespace::default());
        }
    }
}
