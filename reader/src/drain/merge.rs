//! Brings samples of many rings into the order of time, in bounded memory.
//!
//! A ring is in order per thread only. A sample waits until the watermark, a time before which every ring
//! has been drained, passes it. When too many wait, the oldest go out early: order is a courtesy of the
//! profile, completeness is a promise.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use selfwind_profile::profile_file::Sample;

/// Frames that may wait (8 bytes each).
const FRAMES_LIMIT: usize = 1 << 20;

/// Samples that wait for their turn.
#[derive(Default)]
pub(crate) struct Merge {
    heap: BinaryHeap<Reverse<QueuedSample>>,
    frames: usize,
    arrivals: u64,
}

struct QueuedSample {
    /// Time, then order of arrival: equal times stay as their thread wrote them.
    key: (u64, u64),
    sample: Sample,
}

impl PartialEq for QueuedSample {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}
impl Eq for QueuedSample {}
impl PartialOrd for QueuedSample {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for QueuedSample {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl Merge {
    /// Takes a sample, and gives back the oldest one when there are too many.
    pub(crate) fn push(&mut self, sample: Sample) -> Option<Sample> {
        self.frames += weight_in_memory(&sample);
        self.arrivals += 1;
        self.heap.push(Reverse(QueuedSample { key: (sample.ns, self.arrivals), sample }));
        if self.frames > FRAMES_LIMIT { self.pop(u64::MAX) } else { None }
    }

    /// Samples that have come so far: the number of the last one.
    pub(super) fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// The least number of those that wait; every lower one is out.
    pub(crate) fn oldest(&self) -> u64 {
        self.heap.iter().map(|Reverse(waiting)| waiting.key.1).min().unwrap_or(u64::MAX)
    }

    /// The oldest sample, if it is older than `watermark` (nanoseconds).
    pub(crate) fn pop(&mut self, watermark: u64) -> Option<Sample> {
        if self.heap.peek()?.0.key.0 >= watermark && watermark != u64::MAX {
            return None;
        }
        let sample = self.heap.pop()?.0.sample;
        self.frames -= weight_in_memory(&sample);
        Some(sample)
    }
}

/// In frames; the sample itself counts for eight.
fn weight_in_memory(sample: &Sample) -> usize {
    sample.frames.len() + 8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ns: u64, tid: u32) -> Sample {
        Sample { ns, tid, ..Sample::default() }
    }

    #[test]
    fn order_of_time_up_to_the_watermark() {
        let mut merge = Merge::default();
        for (ns, tid) in [(5, 1), (9, 1), (1, 2), (5, 2), (5, 3), (u64::MAX, 9)] {
            assert_eq!(merge.push(sample(ns, tid)), None);
        }
        let mut out = Vec::new();
        while let Some(sample) = merge.pop(9) {
            out.push((sample.ns, sample.tid));
        }
        assert_eq!(out, [(1, 2), (5, 1), (5, 2), (5, 3)]);
        assert_eq!((merge.arrivals(), merge.oldest()), (6, 2));
        // Late: it goes out at once, behind what is out already.
        assert_eq!(merge.push(sample(3, 4)), None);
        assert_eq!(merge.pop(9).map(|late| late.ns), Some(3));
        assert_eq!(merge.pop(u64::MAX).unwrap().ns, 9);
        assert_eq!(merge.pop(u64::MAX).unwrap().ns, u64::MAX);
        assert_eq!((merge.pop(u64::MAX), merge.frames), (None, 0));
    }

    #[test]
    fn memory_is_bounded_and_nothing_is_lost() {
        let mut merge = Merge::default();
        let deep = vec![1; 1000];
        let mut out = 0;
        for ns in 0..10_000 {
            out +=
                usize::from(merge.push(Sample { ns, frames: deep.clone(), ..Sample::default() }).is_some());
            assert!(merge.frames <= FRAMES_LIMIT);
        }
        while merge.pop(u64::MAX).is_some() {
            out += 1;
        }
        assert_eq!(out, 10_000);
    }
}
