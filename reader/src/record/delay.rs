//! Drops the samples taken before a delay was over (`-D`).
//!
//! The program is sampled from its first instruction on, so that it starts the same way with and without a delay. Early
//! samples are counted as recorded before the recording began, so that all samples stay accounted for.

use std::collections::HashMap;

use selfwind_profile::events::LAST_CLOCK;
use selfwind_profile::profile_file::{Event, Sample};

/// Drops early samples.
#[derive(Debug, Default)]
pub(crate) struct Delay {
    /// CLOCK_MONOTONIC.
    until_ns: u64,
    /// The same for samples of a clock, if that is later.
    clocks_until_ns: u64,
    /// Dropped samples and weight, by process.
    dropped: HashMap<u32, (u64, u64)>,
}

impl Delay {
    /// Drops samples taken before this time.
    pub(crate) fn until(until_ns: u64) -> Self {
        Self { until_ns, clocks_until_ns: until_ns, ..Self::default() }
    }

    /// Samples taken before this time (CLOCK_MONOTONIC, ns) are dropped.
    pub(super) fn until_ns(&self) -> u64 {
        self.until_ns
    }

    /// Drops the samples of clocks before this time as well.
    pub(crate) fn clocks_until(self, until_ns: u64) -> Self {
        Self { clocks_until_ns: until_ns.max(self.until_ns), ..self }
    }

    /// The same for a snapshot, while the recording continues.
    pub(crate) fn filter_end(&self, end: Event) -> Option<Event> {
        Self { dropped: self.dropped.clone(), ..*self }.filter(end)
    }

    /// True if the sample is too early; it is then counted as dropped.
    #[inline]
    pub(super) fn drops(&mut self, sample: &Sample) -> bool {
        let is_of_clock = sample.source <= LAST_CLOCK;
        let is_early = sample.ns < if is_of_clock { self.clocks_until_ns } else { self.until_ns };
        if is_early {
            let dropped = self.dropped.entry(sample.process).or_default();
            *dropped = (dropped.0 + sample.events(), dropped.1 + u64::from(sample.weight));
        }
        is_early
    }

    /// The event as it is written to the profile; `None` if it is dropped.
    pub(crate) fn filter(&mut self, mut event: Event) -> Option<Event> {
        let (dropped, counters) = match &mut event {
            Event::Sample(sample) if self.drops(sample) => return None,
            Event::Counters(at) => (self.dropped.get(&at.process).copied(), &mut at.counters),
            Event::ProcessEnd(end) => (self.dropped.remove(&end.process), &mut end.counters),
            _ => return Some(event),
        };
        if let Some((samples, weight)) = dropped {
            counters.earlier += samples;
            counters.earlier_weight += weight;
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selfwind_profile::profile_file::{Counters, ProcessEnd};

    #[test]
    fn early_samples_are_accounted_for() {
        let mut delay = Delay::until(100);
        let sample = |ns| Event::Sample(Sample { process: 3, ns, weight: 2, ..Sample::default() });
        assert_eq!(delay.filter(sample(99)), None);
        assert_eq!(delay.filter(sample(100)), Some(sample(100)));
        let counters = Counters { recorded: 2, earlier: 5, ..Counters::default() };
        let end = ProcessEnd { process: 3, counters, ..ProcessEnd::default() };
        let Some(Event::ProcessEnd(end)) = delay.filter(Event::ProcessEnd(end)) else { panic!() };
        assert_eq!((end.counters.earlier, end.counters.earlier_weight), (6, 2));
    }

    #[test]
    fn a_sample_of_several_allocations_counts_as_so_many() {
        let mut delay = Delay::until(100);
        let allocation = Sample { ns: 99, weight: 7, source: 4, ..Sample::default() };
        assert_eq!((allocation.events(), delay.filter(Event::Sample(allocation))), (7, None));
        let Some(Event::ProcessEnd(end)) = delay.filter(Event::ProcessEnd(ProcessEnd::default())) else {
            panic!()
        };
        assert_eq!((end.counters.earlier, end.counters.earlier_weight), (7, 7));
    }

    #[test]
    fn clocks_may_begin_later_than_events() {
        let mut delay = Delay::default().clocks_until(100);
        let sample = |source, ns| Event::Sample(Sample { source, ns, ..Sample::default() });
        assert_eq!(delay.filter(sample(LAST_CLOCK, 99)), None);
        let allocation = sample(LAST_CLOCK + 1, 99);
        assert_eq!(delay.filter(allocation.clone()), Some(allocation));
    }
}
