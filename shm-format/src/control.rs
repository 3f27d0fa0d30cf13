//! The control page: counters of what became of every sample, by cause.
//!
//! At rest `fired = recorded + sum(lost) + sum(skipped)` holds, in counts and in weights. A handler cut short by the
//! death of its process has only fired. The counters are written by the target: the reader reports them and relies on
//! none.

use crate::atomic::{AtomicU64, Ordering};
use crate::layout::{CAUSES, CauseLine, ControlPage, HISTOGRAM, Tally};

/// Why a sample that should have been recorded was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// No chunk was free.
    PoolFull = 0,
    /// Nested records intervened too often.
    Retries = 1,
    /// The record exceeds the size limit of a chunk or of a durable record.
    TooLarge = 2,
    /// The thread has no slot in the agent.
    NoSlot = 3,
    /// The durable log is full, or full up to its backed length.
    DurableFull = 4,
}

impl Loss {
    /// Every cause, by number.
    pub const ALL: [Self; 5] =
        [Self::PoolFull, Self::Retries, Self::TooLarge, Self::NoSlot, Self::DurableFull];

    /// Name used in reports.
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

/// Why a signal was deliberately not turned into a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Skip {
    /// The thread was already in the handler.
    Nested = 0,
    /// The handler ran in a process that does not own the region (between fork and re-arming).
    ForeignProcess = 1,
    /// The recording is over.
    Stopped = 2,
    /// Sampling is off for this thread.
    DisabledThread = 3,
    /// The request has been answered already: the thread has not run since.
    Answered = 4,
    /// The rate limit was reached: handlers had used up their share of CPU time. The weight of the tick is not counted
    /// under this cause but carried over to the thread's next sample.
    OverLimit = 5,
    /// The stack of the handler had too little space.
    NoRoom = 6,
}

impl Skip {
    /// Every cause, by number.
    pub const ALL: [Self; 7] = [
        Self::Nested,
        Self::ForeignProcess,
        Self::Stopped,
        Self::DisabledThread,
        Self::Answered,
        Self::OverLimit,
        Self::NoRoom,
    ];

    /// Name used in reports.
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
    /// Counts a signal that stands for `weight` events.
    #[inline]
    pub fn fire(&self, weight: u64) {
        self.sample.fired.add(weight);
    }

    /// Counts a committed record with this weight.
    #[inline]
    pub fn record(&self, weight: u64) {
        self.sample.recorded.add(weight);
    }

    /// Counts events of weight 1, each with a committed record.
    pub fn record_events(&self, events: u64) {
        for tally in [&self.sample.fired, &self.sample.recorded] {
            tally.count.fetch_add(events, Ordering::Relaxed);
            tally.weight.fetch_add(events, Ordering::Relaxed);
        }
    }

    /// Counts a recorded stack that does not reach its root.
    #[inline]
    pub fn truncate(&self) {
        self.sample.truncated.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a lost sample.
    #[inline]
    pub fn lose(&self, cause: Loss, weight: u64) {
        self.lost.add(cause as usize, weight);
    }

    /// Counts a skipped sample.
    #[inline]
    pub fn skip(&self, cause: Skip, weight: u64) {
        self.skipped.add(cause as usize, weight);
    }

    /// Counts carried-over weight that no sample will take up because the thread ends.
    pub fn leave_out(&self, weight: u64) {
        if let Some(tally) = self.skipped.causes.get(Skip::OverLimit as usize) {
            tally.weight.fetch_add(weight, Ordering::Relaxed);
        }
    }

    /// Counts a handler run that took this many ticks.
    #[inline]
    pub fn handler_time(&self, ticks: u64) {
        if let Some(bucket) = self.handler_time.get(bucket_of(ticks)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a thread that is registered.
    pub fn thread_started(&self) {
        self.thread.started.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a thread that ended or was removed.
    pub fn thread_ended(&self) {
        self.thread.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a thread that is sampled by a timer instead of perf events, because it switches often.
    pub fn thread_switches_often(&self) {
        self.thread.switching.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of times that the reader has told of new unwind tables.
    #[must_use]
    pub fn tables_told(&self) -> u64 {
        self.request.tables.load(Ordering::Relaxed)
    }

    /// All counters, each read once. Not a consistent snapshot while writers run.
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
            threads_switching: load(&self.thread.switching),
            chunks_overwritten: load(&self.fill.overwritten),
            chunks_complete: load(&self.fill.complete),
            handler_time: core::array::from_fn(|i| load(&self.handler_time[i])),
        }
    }
}

/// A count of events and the sum of their weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TallySnapshot {
    /// Number of events.
    pub count: u64,
    /// Sum of their weights: timer periods or other units.
    pub weight: u64,
}

/// The counters of the control page, read at about the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountersSnapshot {
    /// Signals received.
    pub fired: TallySnapshot,
    /// Records committed.
    pub recorded: TallySnapshot,
    /// Recorded stacks that do not reach their root.
    pub truncated: u64,
    lost: [TallySnapshot; CAUSES],
    skipped: [TallySnapshot; CAUSES],
    /// Threads registered.
    pub threads_started: u64,
    /// Threads that ended or were removed.
    pub threads_ended: u64,
    /// Threads whose perf events a timer has replaced, because they switch often.
    pub threads_switching: u64,
    /// Chunks overwritten unread (overwrite mode).
    pub chunks_overwritten: u64,
    /// Approximate number of chunks that wait for the reader.
    pub chunks_complete: u64,
    /// Histogram of handler durations: see [`bucket_range`].
    pub handler_time: [u64; HISTOGRAM],
}

impl CountersSnapshot {
    /// Samples lost for this cause.
    #[must_use]
    pub fn lost(&self, cause: Loss) -> TallySnapshot {
        self.lost.get(cause as usize).copied().unwrap_or_default()
    }

    /// Samples skipped for this cause.
    #[must_use]
    pub fn skipped(&self, cause: Skip) -> TallySnapshot {
        self.skipped.get(cause as usize).copied().unwrap_or_default()
    }

    /// Samples lost for any cause, including causes of newer writers.
    #[must_use]
    pub fn lost_total(&self) -> TallySnapshot {
        total(&self.lost)
    }

    /// Samples skipped for any cause, including causes of newer writers.
    #[must_use]
    pub fn skipped_total(&self) -> TallySnapshot {
        total(&self.skipped)
    }

    /// Signals without any result: handlers still running, or cut short by the process's death.
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

/// Histogram bucket of a duration in ticks: one each for 0 to 3, then four per power of two; the last bucket is
/// open-ended.
#[must_use]
pub(crate) const fn bucket_of(ticks: u64) -> usize {
    if ticks < 4 {
        return ticks as usize;
    }
    let octave = 63 - ticks.leading_zeros() as usize;
    let quarter = (ticks >> (octave - 2) & 3) as usize;
    let bucket = (octave - 1) * 4 + quarter;
    if bucket < HISTOGRAM { bucket } else { HISTOGRAM - 1 }
}

/// Range of durations in a bucket: first and last tick count.
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
