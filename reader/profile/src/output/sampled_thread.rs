//! The threads of a profile that have a weight, once for each event, for formats that separate threads.

use crate::measure::Measure;
use crate::profile::{Bucket, Process, Profile, Stack, Thread, truncation_mark};

/// Root of a stack without frames: most viewers leave out a sample that has none.
const NO_FRAMES: &str = "[no frames]";

/// A thread and its stacks at one event.
#[derive(Clone, Copy)]
pub(super) struct SampledThread<'a> {
    profile: &'a Profile,
    buckets: &'a [Bucket],
}

/// All threads with weight, once for each event, in the order of the profile.
pub(super) fn sampled_threads(profile: &Profile) -> Vec<SampledThread<'_>> {
    let threads = profile.buckets.chunk_by(|a, b| (a.thread, a.event) == (b.thread, b.event));
    threads.map(|buckets| SampledThread { profile, buckets }).filter(|thread| thread.weight() > 0).collect()
}

/// The index in `threads` of the one with the greatest weight of the main event, or else of the first event that has
/// weight; the first of equals.
pub(super) fn heaviest(threads: &[SampledThread<'_>]) -> usize {
    let weights = threads.iter().map(SampledThread::rank).enumerate();
    weights.max_by_key(|&(index, rank)| (rank, std::cmp::Reverse(index))).map_or(0, |(index, _)| index)
}

/// The marker at the root of a stack that is truncated or has no frames.
pub(super) fn mark(profile: &Profile, stack: &Stack) -> Option<String> {
    let empty = || profile.frames(stack).next().is_none().then(|| NO_FRAMES.to_owned());
    truncation_mark(stack.end).or_else(empty)
}

impl<'a> SampledThread<'a> {
    /// Its stacks with weight, in the order of the profile.
    pub(super) fn buckets(&self) -> impl Iterator<Item = &'a Bucket> + use<'a> {
        self.buckets.iter().filter(|bucket| bucket.weight > 0)
    }

    /// Sum of the weights of its stacks.
    pub(super) fn weight(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.weight).sum()
    }

    /// Sort key. Weights of different events are not comparable.
    pub(super) fn rank(&self) -> (bool, std::cmp::Reverse<u8>, u64) {
        let event = self.event();
        (event == self.profile.main, std::cmp::Reverse(event), self.weight())
    }

    /// Index in the profile's threads.
    pub(super) fn number(&self) -> u32 {
        self.buckets[0].thread
    }

    /// The thread itself.
    pub(super) fn thread(&self) -> &'a Thread {
        &self.profile.threads[self.number() as usize]
    }

    /// The process it belongs to.
    pub(super) fn process(&self) -> &'a Process {
        self.profile.process_of(self.number())
    }

    /// Index in the profile's measures.
    pub(super) fn event(&self) -> u8 {
        self.buckets[0].event
    }

    /// The measure of its weights.
    pub(super) fn measure(&self) -> &'a Measure {
        self.profile.measure(self.event())
    }

    /// The name of the thread, or else of its process.
    pub(super) fn name(&self) -> String {
        let thread = self.thread();
        if thread.name.is_empty() { self.process().name() } else { thread.name.clone() }
    }

    /// ` (EVENT)` if there are several.
    pub(super) fn event_suffix(&self) -> String {
        if self.profile.measures.len() < 2 { String::new() } else { format!(" ({})", self.measure().name) }
    }

    /// `NAME-PID/TID`, and the event where there are several.
    pub(super) fn label(&self) -> String {
        format!("{}-{}/{}{}", self.name(), self.process().info.pid, self.thread().tid, self.event_suffix())
    }

    /// Nanoseconds of CPU time that one unit of weight stands for.
    pub(super) fn period_ns(&self) -> u64 {
        self.profile.period_ns(self.number(), self.event())
    }
}
