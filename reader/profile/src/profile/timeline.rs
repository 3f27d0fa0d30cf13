//! The timeline: samples with their times, and the spans in which samples were lost.
//!
//! It is kept only for outputs with a time axis, as its size grows with the number of samples.

use std::collections::HashMap;

use crate::profile_file::{Counters, Event};

/// A sample at its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedSample {
    /// When, CLOCK_MONOTONIC of the recording machine.
    pub ns: u64,
    /// Index in [`super::Profile::threads`].
    pub thread: u32,
    /// Index in [`super::Profile::measures`].
    pub event: u8,
    /// Index in [`super::Profile::stacks`].
    pub stack: u32,
    /// Number of the event's fields, see [`super::Bucket::fields`].
    pub fields: u32,
    /// Its weight.
    pub weight: u32,
}

/// Samples of a process that were lost for one cause between two readings of its counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The process's number in the file.
    pub process: u32,
    /// Time of the previous reading, or the start of the process.
    pub from_ns: u64,
    /// Time of the reading that shows it.
    pub until_ns: u64,
    /// Why.
    pub cause: String,
    /// Samples.
    pub samples: u64,
    /// Their weight in timer periods.
    pub weight: u64,
}

/// Finds losses in successive counters.
#[derive(Debug, Default)]
pub(crate) struct LossFinder {
    /// By process: when its counters were read last.
    read: HashMap<u32, u64>,
    /// By process and cause: lost samples and weight so far.
    told: HashMap<(u32, String), (u64, u64)>,
}

impl LossFinder {
    /// Takes in an event, and appends what was lost since the previous counters.
    pub(crate) fn learn(&mut self, event: &Event, losses: &mut Vec<Loss>) {
        match event {
            Event::Process(info) => {
                self.read.entry(info.id).or_insert(info.start_ns);
            }
            Event::Counters(at) => self.compare(at.process, at.ns, &at.counters, losses),
            Event::ProcessEnd(end) => self.compare(end.process, end.ns, &end.counters, losses),
            _ => {}
        }
    }

    fn compare(&mut self, process: u32, ns: u64, counters: &Counters, losses: &mut Vec<Loss>) {
        let from_ns = self.read.insert(process, ns).unwrap_or(ns);
        for cause in &counters.lost {
            let told = self.told.entry((process, cause.name.clone())).or_default();
            let (samples, weight) = (cause.count.saturating_sub(told.0), cause.weight.saturating_sub(told.1));
            if samples > 0 {
                *told = (cause.count, cause.weight);
                let cause = cause.name.clone();
                losses.push(Loss { process, from_ns, until_ns: ns.max(from_ns), cause, samples, weight });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile_file::{Cause, CountersAt, ProcessEnd};

    #[test]
    fn losses_lie_between_readings() {
        let counters = |count| Counters {
            lost: vec![Cause { name: "pool_full".into(), count, weight: 2 * count }],
            ..Counters::default()
        };
        let at = |ns, count| Event::Counters(CountersAt { process: 3, ns, counters: counters(count) });
        let end = ProcessEnd { process: 3, ns: 90, counters: counters(9), ..ProcessEnd::default() };
        let (mut finder, mut losses) = (LossFinder::default(), Vec::new());
        for event in [at(10, 0), at(20, 4), at(30, 4), at(40, 5), Event::ProcessEnd(end)] {
            finder.learn(&event, &mut losses);
        }
        let spans: Vec<_> = losses.iter().map(|l| (l.from_ns, l.until_ns, l.samples, l.weight)).collect();
        assert_eq!(spans, [(10, 20, 4, 8), (30, 40, 1, 2), (40, 90, 4, 8)]);
    }
}
