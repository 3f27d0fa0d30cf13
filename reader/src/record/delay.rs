//! Leaves out what was sampled before a delay was over.
//!
//! The program is sampled from its first instruction on, so that it starts the same way with and without a
//! delay; what comes too early is counted as recorded before the recording began, and nothing is unaccounted for.

use std::collections::HashMap;

use selfwind_profile::profile_file::{Event, Sample};

/// What is left out.
#[derive(Debug, Default)]
pub(crate) struct Delay {
    /// CLOCK_MONOTONIC.
    until_ns: u64,
    /// Samples and weight by process.
    left_out: HashMap<u32, (u64, u64)>,
}

impl Delay {
    /// Leaves out samples taken before this time.
    pub(crate) fn until(until_ns: u64) -> Self {
        Self { until_ns, ..Self::default() }
    }

    /// The same for a profile that ends here, while the recording goes on.
    pub(crate) fn filter_end(&self, end: Event) -> Option<Event> {
        Self { until_ns: self.until_ns, left_out: self.left_out.clone() }.filter(end)
    }

    /// Leaves a sample out, if it is too early.
    #[inline]
    pub(super) fn leaves_out(&mut self, sample: &Sample) -> bool {
        let is_early = sample.ns < self.until_ns;
        if is_early {
            let left_out = self.left_out.entry(sample.process).or_default();
            *left_out = (left_out.0 + 1, left_out.1 + u64::from(sample.weight));
        }
        is_early
    }

    /// The event as it goes into the profile, if it does.
    pub(crate) fn filter(&mut self, mut event: Event) -> Option<Event> {
        let (left_out, counters) = match &mut event {
            Event::Sample(sample) if self.leaves_out(sample) => return None,
            Event::Counters(at) => (self.left_out.get(&at.process).copied(), &mut at.counters),
            Event::ProcessEnd(end) => (self.left_out.remove(&end.process), &mut end.counters),
            _ => return Some(event),
        };
        if let Some((samples, weight)) = left_out {
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
}
