//! The control page: what happened to every sample, counted by cause.
//!
//! `fired = recorded + sum(lost) + sum(skipped)` holds at rest, in counts and in weights; a handler cut short by the
//! death of its process has fired and nothing else. The counters are the target's own words: the reader reports
//! them, and trusts them with nothing.

use crate::atomic::{AtomicU64, Ordering};
use crate::layout::{CAUSES, CauseLine, ControlPage, HISTOGRAM, Tally};

/// Why a sample that should have been recorded was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// No chunk was free.
    PoolFull = 0,
    /// Nested records got in between too many times.
    Retries = 1,
    /// The record is larger than a chunk or a durable record may be.
    TooLarge = 2,
    /// The thread has no slot in the agent.
    NoSlot = 3,
    /// The durable log is full, or full as far as it is backed.
    DurableFull = 4,
}

impl Loss {
    /// Every cause, in the order of its number.
    pub const ALL: [Self; 5] =
        [Self::PoolFull, Self::Retries, Self::TooLarge, Self::NoSlot, Self::DurableFull];

    /// Name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PoolFull => "pool_full",
            Self::Retries => "retries",
            Self::TooLarge => "too_large",
            Self::NoSlot => "no_slot",
            Self::DurableFull => "durable_full",
        }
    }
}

/// Why a signal was not meant to become a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Skip {
    /// The thread was already in the handler.
    Nested = 0,
    /// The handler ran in a process that is not the region's (between fork and re-arming).
    ForeignProcess = 1,
    /// The recording is over.
    Stopped = 2,
    /// Sampling is off for this thread.
    DisabledThread = 3,
    /// What asked for it has been answered already: the thread has not run since.
    Answered = 4,
    /// Handlers had taken the share of the CPU time that they may have. What the tick stands for is not in this cause's
    /// weight but in that of the thread's next sample.
    OverLimit = 5,
    /// The stack on which the handler runs had no room for it.
    NoRoom = 6,
}

impl Skip {
    /// Every cause, in the order of its number.
    pub const ALL: [Self; 7] = [
        Self::Nested,
        Self::ForeignProcess,
        Self::Stopped,
        Self::DisabledThread,
        Self::Answered,
        Self::OverLimit,
        Self::NoRoom,
    ];

    /// Name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nested => "nested",
            Self::ForeignProcess => "foreign_process",
            Self::Stopped => "stopped",
            Self::DisabledThread => "disabled_thread",
            Self::Answered => "answered",
            Self::OverLimit => "max_overhead",
            Self::NoRoom => "no_room",
        }
    }
}

/// The control page of a region.
pub type Control = ControlPage;

impl Tally {
    fn add(&self, weight: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.weight.fetch_add(weight, Ordering::Relaxed);
    }

    fn snapshot(&self) -> TallySnapshot {
        TallySnapshot {
            count: self.count.load(Ordering::Relaxed),
            weight: self.weight.load(Ordering::Relaxed),
        }
    }
}

impl CauseLine {
    fn add(&self, cause: usize, weight: u64) {
        if let Some(tally) = self.causes.get(cause) {
            tally.add(weight);
        }
    }
}

impl ControlPage {
    /// A signal arrived that stands for `weight` events.
    #[inline]
    pub fn fire(&self, weight: u64) {
        self.sample.fired.add(weight);
    }

    /// A record with that weight was committed.
    #[inline]
    pub fn record(&self, weight: u64) {
        self.sample.recorded.add(weight);
    }

    /// So many events of weight 1 came, and were committed.
    pub fn record_events(&self, events: u64) {
        for tally in [&self.sample.fired, &self.sample.recorded] {
            tally.count.fetch_add(events, Ordering::Relaxed);
            tally.weight.fetch_add(events, Ordering::Relaxed);
        }
    }

    /// A recorded stack does not reach its root.
    #[inline]
    pub fn truncate(&self) {
        self.sample.truncated.fetch_add(1, Ordering::Relaxed);
    }

    /// A sample was lost.
    #[inline]
    pub fn lose(&self, cause: Loss, weight: u64) {
        self.lost.add(cause as usize, weight);
    }

    /// A sample was skipped.
    #[inline]
    pub fn skip(&self, cause: Skip, weight: u64) {
        self.skipped.add(cause as usize, weight);
    }

    /// A thread ends that had left that much weight to its next sample.
    pub fn leave_out(&self, weight: u64) {
        if let Some(tally) = self.skipped.causes.get(Skip::OverLimit as usize) {
            tally.weight.fetch_add(weight, Ordering::Relaxed);
        }
    }

    /// A handler took that many ticks of the trace clock.
    #[inline]
    pub fn handler_time(&self, ticks: u64) {
        if let Some(bucket) = self.handler_time.get(bucket_of(ticks)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A thread came under observation.
    pub fn thread_started(&self) {
        self.thread.started.fetch_add(1, Ordering::Relaxed);
    }

    /// A thread ended or left observation.
    pub fn thread_ended(&self) {
        self.thread.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// All counters, each read once; not one consistent moment while writers run.
    #[must_use]
    pub fn snapshot(&self) -> CountersSnapshot {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        CountersSnapshot {
            fired: self.sample.fired.snapshot(),
            recorded: self.sample.recorded.snapshot(),
            truncated: load(&self.sample.truncated),
            lost: core::array::from_fn(|i| self.lost.causes[i].snapshot()),
            skipped: core::array::from_fn(|i| self.skipped.causes[i].snapshot()),
            threads_started: load(&self.thread.started),
            threads_ended: load(&self.thread.ended),
            chunks_overwritten: load(&self.fill.overwritten),
            chunks_complete: load(&self.fill.complete),
            handler_time: core::array::from_fn(|i| load(&self.handler_time[i])),
        }
    }
}

/// A count of events and the sum of their weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TallySnapshot {
    /// Events.
    pub count: u64,
    /// Timer periods (or other units) they stand for.
    pub weight: u64,
}

/// The control page's counters at about one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountersSnapshot {
    /// Signals that arrived.
    pub fired: TallySnapshot,
    /// Records committed.
    pub recorded: TallySnapshot,
    /// Recorded stacks that do not reach their root.
    pub truncated: u64,
    lost: [TallySnapshot; CAUSES],
    skipped: [TallySnapshot; CAUSES],
    /// Threads that came under observation.
    pub threads_started: u64,
    /// Threads that ended or left observation.
    pub threads_ended: u64,
    /// Chunks overwritten before they were read (overwrite mode).
    pub chunks_overwritten: u64,
    /// Chunks waiting for the reader, about.
    pub chunks_complete: u64,
    /// Handlers by duration: see [`bucket_of`] and [`bucket_range`].
    pub handler_time: [u64; HISTOGRAM],
}

impl CountersSnapshot {
    /// Samples lost for one cause.
    #[must_use]
    pub fn lost(&self, cause: Loss) -> TallySnapshot {
        self.lost.get(cause as usize).copied().unwrap_or_default()
    }

    /// Samples skipped for one cause.
    #[must_use]
    pub fn skipped(&self, cause: Skip) -> TallySnapshot {
        self.skipped.get(cause as usize).copied().unwrap_or_default()
    }

    /// Samples lost, all causes, those of newer writers too.
    #[must_use]
    pub fn lost_total(&self) -> TallySnapshot {
        total(&self.lost)
    }

    /// Samples skipped, all causes, those of newer writers too.
    #[must_use]
    pub fn skipped_total(&self) -> TallySnapshot {
        total(&self.skipped)
    }

    /// Signals that fired and came to nothing: handlers still running, or cut short by the process's death.
    #[must_use]
    pub fn cut_short(&self) -> TallySnapshot {
        let (lost, skipped) = (self.lost_total(), self.skipped_total());
        let rest =
            |fired: u64, done: [u64; 3]| done.into_iter().fold(fired, |rest, part| rest.saturating_sub(part));
        TallySnapshot {
            count: rest(self.fired.count, [self.recorded.count, lost.count, skipped.count]),
            weight: rest(self.fired.weight, [self.recorded.weight, lost.weight, skipped.weight]),
        }
    }
}

fn total(tallies: &[TallySnapshot]) -> TallySnapshot {
    tallies.iter().fold(TallySnapshot::default(), |sum, tally| TallySnapshot {
        count: sum.count.wrapping_add(tally.count),
        weight: sum.weight.wrapping_add(tally.weight),
    })
}

/// The histogram bucket of a duration in ticks: one each for 0 to 3, then four per power of two, the last one open.
#[must_use]
pub const fn bucket_of(ticks: u64) -> usize {
    if ticks < 4 {
        return ticks as usize;
    }
    let octave = 63 - ticks.leading_zeros() as usize;
    let quarter = (ticks >> (octave - 2) & 3) as usize;
    let bucket = (octave - 1) * 4 + quarter;
    if bucket < HISTOGRAM { bucket } else { HISTOGRAM - 1 }
}

/// The durations in a bucket: first and last tick count.
#[must_use]
pub const fn bucket_range(bucket: usize) -> (u64, u64) {
    if bucket < 4 {
        return (bucket as u64, bucket as u64);
    }
    if bucket >= HISTOGRAM - 1 {
        return (bucket_range(HISTOGRAM - 2).1 + 1, u64::MAX);
    }
    let (octave, quarter) = (bucket / 4 + 1, bucket as u64 % 4);
    let step = 1 << (octave - 2);
    let first = (4 + quarter) * step;
    (first, first + step - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_tile_the_numbers() {
        let mut next = 0;
        for bucket in 0..HISTOGRAM {
            let (first, last) = bucket_range(bucket);
            assert_eq!(first, next, "bucket {bucket}");
            assert_eq!((bucket_of(first), bucket_of(last)), (bucket, bucket));
            next = last.wrapping_add(1);
        }
        assert_eq!(next, 0);
    }

    #[test]
    fn causes_have_room_and_their_numbers() {
        for (number, cause) in Loss::ALL.into_iter().enumerate() {
            assert!(cause as usize == number && number < CAUSES);
        }
        for (number, cause) in Skip::ALL.into_iter().enumerate() {
            assert!(cause as usize == number && number < CAUSES);
        }
    }
}
