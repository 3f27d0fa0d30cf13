//! Kernel events by name, with their numbers in perf_event_open(2).

/// Nanoseconds per unit of weight of off-CPU time.
pub const OFF_PROCESSOR_UNIT_NS: u64 = 1000;

/// Software events: name, `config`, whether they occur in user mode.
pub const SOFTWARE_EVENTS: [(&str, u64, bool); 12] = [
    ("cpu-clock", 0, true),
    ("task-clock", 1, true),
    ("page-faults", 2, true),
    ("faults", 2, true),
    ("context-switches", 3, false),
    ("cs", 3, false),
    ("cpu-migrations", 4, false),
    ("migrations", 4, false),
    ("minor-faults", 5, true),
    ("major-faults", 6, true),
    ("alignment-faults", 7, true),
    ("emulation-faults", 8, true),
];

/// Hardware events: name, `config`.
pub const HARDWARE_EVENTS: [(&str, u64); 12] = [
    ("cycles", 0),
    ("cpu-cycles", 0),
    ("instructions", 1),
    ("cache-references", 2),
    ("cache-misses", 3),
    ("branches", 4),
    ("branch-instructions", 4),
    ("branch-misses", 5),
    ("bus-cycles", 6),
    ("stalled-cycles-frontend", 7),
    ("stalled-cycles-backend", 8),
    ("ref-cycles", 9),
];

/// How often an event is sampled if no period is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Every time.
    Every,
    /// This many times per second of CPU time.
    Clock,
    /// At a frequency; the kernel adapts the period.
    Adapted,
}

/// The rate of the event with this name.
pub(crate) fn rate_of(name: &str) -> Rate {
    if HARDWARE_EVENTS.iter().any(|(known, _)| *known == name) {
        return Rate::Adapted;
    }
    let clock = SOFTWARE_EVENTS.iter().any(|(known, config, _)| *known == name && *config <= 1);
    if clock { Rate::Clock } else { Rate::Every }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_how_often_the_event_is_sampled() {
        assert_eq!(
            (rate_of("cs"), rate_of("cpu-clock"), rate_of("cycles")),
            (Rate::Every, Rate::Clock, Rate::Adapted)
        );
    }
}
