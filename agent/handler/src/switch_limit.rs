//! How often a thread with perf events may switch.

use platform::clock::SECOND_NS;

/// Switches per second of CPU time that a thread with perf events may make.
#[derive(Clone, Copy, Debug)]
pub struct SwitchLimit(u64);

/// A thread may make the switches of this CPU time early: many threads read files when they start, and compute later.
const BURST_NS: u64 = SECOND_NS / 10;

impl SwitchLimit {
    /// No limit.
    pub const NONE: SwitchLimit = SwitchLimit(u64::MAX);

    /// The limit at which switches that cost `cost_ns` each take `share` hundredths of a percent of CPU time.
    pub fn new(cost_ns: u64, share: u64) -> SwitchLimit {
        (share * (SECOND_NS / 10_000)).checked_div(cost_ns).map_or(Self::NONE, SwitchLimit)
    }

    /// Whether there is a limit.
    pub(crate) fn is_set(self) -> bool {
        self.0 != Self::NONE.0
    }

    /// Whether a thread that has used `cpu_ns` of CPU time has made too many.
    pub(crate) fn is_exceeded(self, switches: u64, cpu_ns: u64) -> bool {
        u128::from(switches) * u128::from(SECOND_NS) > u128::from(self.0) * u128::from(cpu_ns.max(BURST_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_share_of_cpu_time() {
        // 5 us for each switch, 2 %.
        let limit = SwitchLimit::new(5_000, 200);
        assert_eq!(limit.0, 4_000);
        assert!(!limit.is_exceeded(4_000, SECOND_NS) && limit.is_exceeded(4_001, SECOND_NS));
        assert!(!limit.is_exceeded(400, SECOND_NS / 1000) && limit.is_exceeded(401, SECOND_NS / 1000));
        assert!(!SwitchLimit::new(0, 200).is_exceeded(u64::MAX, SECOND_NS));
        assert!(SwitchLimit::new(5_000, 0).is_exceeded(1, SECOND_NS));
        assert!(!SwitchLimit::new(5_000, 0).is_exceeded(0, SECOND_NS));
    }
}
