//! The events of one answer, on their way to becoming samples.

use selfwind_profile::profile_file::{KernelSample, WAKE_LATENCY};

use super::deferred::Deferred;
use super::perf_record::PerfSample;

/// The events of one answer, and how many more were lost.
#[derive(Default)]
pub(super) struct AnswerEvents {
    pub(super) samples: Vec<PendingEvent>,
    /// Events lost because the ring was full.
    pub(super) lost: u64,
    /// The same, before any of `samples`.
    pub(super) lost_before: u64,
    /// Time for which the thread was preempted.
    pub(super) preempted_ns: u64,
    /// Stacks walked by the kernel.
    pub(super) deferred: Deferred,
}

/// An event on its way to becoming a sample.
pub(super) struct PendingEvent {
    pub(super) sample: PerfSample,
    pub(super) offset: u64,
    pub(super) weight: u64,
    /// The part of the weight during which the thread was runnable.
    pub(super) delay: u64,
}

impl PendingEvent {
    /// The event as stored in a profile, and separately its wake-up latency.
    pub(super) fn to_kernel_samples(&self, event: u32) -> impl Iterator<Item = KernelSample> + use<> {
        const MOST: u64 = u32::MAX as u64;
        let ns = self.sample.ns;
        // A wait of more than 71 minutes exceeds the weight of one sample.
        let samples = move |weight: u64, frames: Vec<u64>| {
            let sample = move |full: u64| {
                let weight = (weight - full * MOST).min(MOST) as u32;
                KernelSample { ns, weight, event: event as u8, frames: frames.clone() }
            };
            (0..weight.div_ceil(MOST)).map(sample)
        };
        let frames = &self.sample.frames;
        let woken = [&[WAKE_LATENCY], &frames[..]].concat();
        samples(self.weight - self.delay, frames.clone()).chain(samples(self.delay, woken))
    }
}
