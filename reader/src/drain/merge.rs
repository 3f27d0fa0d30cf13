//! Merges the samples of many threads into timestamp order, in bounded memory.
//!
//! Drained samples are in order per thread only. A sample waits here until the watermark passes it: every pool has been
//! drained up to that time. When too many wait, the oldest leave early: a profile must be complete, and may be slightly
//! out of order.
//!
//! Samples that arrive in timestamp order form a run. Only the heads of runs are compared. A run stores, for each stack, the
//! frames that it does not share with the stack before; a stack is reassembled when its sample leaves. What must never
//! happen here: a stack that contains frames of another.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use selfwind_profile::profile_file::{Sample, SampleRef};

/// Maximum memory of waiting samples, in words of 8 bytes.
const WORDS_MAX: usize = 1 << 20;
/// Maximum number of samples in a run. The memory of a run is freed when its last sample has left.
const RUN_MAX: usize = 512;
/// Words that a sample takes besides its frames.
const SAMPLE_WORDS: usize = size_of::<QueuedSample>() / 8;
/// How many empty runs keep their memory for reuse.
const FREE_MAX: usize = 96;

/// The samples waiting to leave in timestamp order.
#[derive(Default)]
pub(crate) struct Merge {
    runs: Vec<Run>,
    /// The first sample of each non-empty run.
    heads: BinaryHeap<Reverse<Head>>,
    /// Empty runs.
    free: Vec<usize>,
    /// The run that was pushed to last.
    pushed_to: Option<usize>,
    /// The run that was popped from last.
    popped_from: Option<usize>,
    /// A run whose last sample is still borrowed by the caller.
    exhausted: Option<usize>,
    words: usize,
    arrivals: u64,
}

/// Ordered as samples leave: by time, then by arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Head {
    ns: u64,
    /// Keeps samples with equal timestamps in the order in which their thread wrote them.
    arrival: u64,
    run: usize,
}

/// Samples in timestamp order, and in order of arrival.
#[derive(Default)]
struct Run {
    samples: Vec<QueuedSample>,
    /// How many of them have left.
    popped: usize,
    /// The frames of all stacks, root first, each without those shared with the stack before.
    frames: Vec<u64>,
    /// How many of these belong to samples that have left.
    frames_popped: usize,
    /// The stack of the sample that left last, root first.
    stack: Vec<u64>,
    /// The stack of the sample that arrived last, root first.
    newest: Vec<u64>,
}

/// Where a sample is queued, until the next call of [`Merge::pop`].
#[derive(Clone, Copy)]
pub(crate) struct Queued {
    run: usize,
    at: usize,
}

/// A sample without its frames.
struct QueuedSample {
    sample: Sample,
    /// Number of frames shared with the sample before it in its run, and of other frames.
    shared: u32,
    new: u32,
}

impl Run {
    /// True if a sample with this timestamp can be appended.
    fn accepts(&self, ns: u64) -> bool {
        self.samples.len() < RUN_MAX && self.samples.last().is_some_and(|last| last.sample.ns <= ns)
    }

    /// Moves to the next sample. Returns how many frames it shares with the one before.
    fn advance(&mut self) -> usize {
        let Some(queued) = self.samples.get(self.popped) else { return 0 };
        let (shared, end) = (queued.shared as usize, self.frames_popped + queued.new as usize);
        self.stack.truncate(shared);
        self.stack.extend_from_slice(&self.frames[self.frames_popped..end]);
        (self.popped, self.frames_popped) = (self.popped + 1, end);
        shared
    }

    /// Stores the frames that differ from the previous sample's, of which at least `shared` outer ones do not. Returns how many
    /// are shared.
    fn keep(&mut self, frames: &[u64], shared: usize) -> usize {
        let (before, now) = (self.newest.get(shared..).unwrap_or(&[]), frames.get(shared..).unwrap_or(&[]));
        let shared = shared + before.iter().zip(now).take_while(|(before, now)| before == now).count();
        let new = frames.get(shared..).unwrap_or(&[]);
        self.frames.extend_from_slice(new);
        self.newest.truncate(shared);
        self.newest.extend_from_slice(new);
        shared
    }

    /// Number of samples and frames.
    fn len(&self) -> (usize, usize) {
        (self.samples.len(), self.frames.len())
    }

    fn clear(&mut self) {
        self.samples.clear();
        self.frames.clear();
        self.newest.clear();
        (self.popped, self.frames_popped) = (0, 0);
    }

    /// Memory in words.
    fn words(&self) -> usize {
        self.samples.len() * SAMPLE_WORDS + self.frames.len()
    }
}

impl Merge {
    /// Adds a sample with its frames, root first. The first `shared` of them are those of the previous call.
    pub(crate) fn push(&mut self, sample: Sample, frames: &[u64], shared: usize) -> Queued {
        self.arrivals += 1;
        let (at, shared) = match self.pushed_to.filter(|&last| self.runs[last].accepts(sample.ns)) {
            Some(last) => (last, shared),
            None => (self.begin(sample.ns), 0),
        };
        let run = &mut self.runs[at];
        let shared = run.keep(frames, shared);
        let new = frames.len().saturating_sub(shared);
        run.samples.push(QueuedSample { sample, shared: shared as u32, new: new as u32 });
        self.words += SAMPLE_WORDS + new;
        Queued { run: at, at: run.samples.len() - 1 }
    }

    /// Counts another event of a sample that is queued.
    pub(super) fn count_again(&mut self, Queued { run, at }: Queued) {
        let weight = &mut self.runs[run].samples[at].sample.weight;
        *weight = weight.saturating_add(1);
    }

    /// Adds a sample that owns its frames.
    pub(super) fn push_owned(&mut self, mut sample: Sample) {
        let mut frames = std::mem::take(&mut sample.frames);
        frames.reverse();
        self.push(sample, &frames, 0);
    }

    /// Begins a run whose first sample has this timestamp. Returns its index.
    fn begin(&mut self, ns: u64) -> usize {
        self.free_exhausted();
        // Runs tend to be equally long, as chunks are.
        let before = self.pushed_to.map_or((0, 0), |last| self.runs[last].len());
        let run = self.free.pop().unwrap_or_else(|| {
            self.runs.push(Run::default());
            self.runs.len() - 1
        });
        self.runs[run].samples.reserve(before.0);
        self.runs[run].frames.reserve(before.1);
        self.heads.push(Reverse(Head { ns, arrival: self.arrivals, run }));
        self.pushed_to = Some(run);
        run
    }

    /// True while the waiting samples take more memory than they may.
    pub(super) fn is_full(&self) -> bool {
        self.words > WORDS_MAX
    }

    /// How many samples have arrived so far: the number of the latest one.
    pub(super) fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// The lowest arrival number among waiting samples; all lower ones have left.
    pub(crate) fn oldest_arrival(&self) -> u64 {
        self.heads.iter().map(|Reverse(head)| head.arrival).min().unwrap_or(u64::MAX)
    }

    /// Removes and returns the oldest sample if it is older than `watermark` (nanoseconds).
    pub(crate) fn pop(&mut self, watermark: u64) -> Option<SampleRef<'_>> {
        self.free_exhausted();
        let mut first = self.heads.peek_mut()?;
        let Reverse(head) = *first;
        if head.ns >= watermark && watermark != u64::MAX {
            return None;
        }
        let run = &mut self.runs[head.run];
        let shared = run.advance();
        match run.samples.get(run.popped) {
            Some(next) => {
                *first = Reverse(Head { ns: next.sample.ns, arrival: head.arrival + 1, run: head.run });
            }
            None => {
                PeekMut::pop(first);
                self.exhausted = Some(head.run);
                // The next push begins another run.
                self.pushed_to = self.pushed_to.filter(|&last| last != head.run);
            }
        }
        let before = self.popped_from.replace(head.run);
        let sample = &run.samples[run.popped - 1].sample;
        Some(SampleRef {
            sample,
            frames: &run.stack,
            shared: if before == self.popped_from { shared } else { 0 },
        })
    }

    /// Frees the run whose last sample was borrowed.
    fn free_exhausted(&mut self) {
        let Some(exhausted) = self.exhausted.take() else { return };
        let run = &mut self.runs[exhausted];
        self.words -= run.words();
        match self.free.len() {
            ..FREE_MAX => run.clear(),
            _ => *run = Run::default(),
        }
        self.free.push(exhausted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ns: u64, tid: u32) -> Sample {
        Sample { ns, tid, ..Sample::default() }
    }

    fn popped(merge: &mut Merge, watermark: u64) -> Option<(u64, u32)> {
        merge.pop(watermark).map(|sample_ref| (sample_ref.sample.ns, sample_ref.sample.tid))
    }

    #[test]
    fn order_of_time_up_to_the_watermark() {
        let mut merge = Merge::default();
        for (ns, tid) in [(5, 1), (9, 1), (1, 2), (5, 2), (5, 3), (u64::MAX, 9)] {
            merge.push(sample(ns, tid), &[], 0);
        }
        let out: Vec<_> = std::iter::from_fn(|| popped(&mut merge, 9)).collect();
        assert_eq!(out, [(1, 2), (5, 1), (5, 2), (5, 3)]);
        assert_eq!((merge.arrivals(), merge.oldest_arrival()), (6, 2));
        // Late: it leaves at once, after samples with later timestamps.
        merge.push(sample(3, 4), &[], 0);
        assert_eq!(popped(&mut merge, 9), Some((3, 4)));
        assert_eq!(popped(&mut merge, u64::MAX), Some((9, 1)));
        assert_eq!(popped(&mut merge, u64::MAX), Some((u64::MAX, 9)));
        assert_eq!((popped(&mut merge, u64::MAX), merge.words), (None, 0));
    }

    #[test]
    fn memory_is_bounded_and_nothing_is_lost() {
        let mut merge = Merge::default();
        let mut deep = [1; 1000];
        let mut out = 0;
        for ns in 0..10_000 {
            // Nothing is shared.
            deep[0] = ns;
            merge.push(sample(ns, 0), &deep, 0);
            while merge.is_full() && merge.pop(u64::MAX).is_some() {
                out += 1;
            }
            assert!(merge.words <= WORDS_MAX);
        }
        while merge.pop(u64::MAX).is_some() {
            out += 1;
        }
        assert_eq!((out, merge.words, merge.oldest_arrival()), (10_000, 0, u64::MAX));
        let kept = |run: &Run| {
            run.samples.capacity() * SAMPLE_WORDS
                + run.frames.capacity()
                + run.stack.capacity()
                + run.newest.capacity()
        };
        let kept: usize = merge.runs.iter().map(kept).sum();
        assert!(kept <= FREE_MAX * 2 * RUN_MAX * (SAMPLE_WORDS + deep.len()), "{kept} words are kept");
    }

    /// Compared with sorting all samples at once, for any timestamps, any interleaved pops and any shared frames.
    #[test]
    fn every_stack_comes_out_whole_and_in_order() {
        let mut state = 7u64;
        let mut random = |limit: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % limit
        };
        let mut merge = Merge::default();
        let mut queued: Vec<(u64, u64, Vec<u64>)> = Vec::new();
        let (mut stack, mut out): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
        let (mut ns, mut arrival, mut shares) = (0, 0, 0);
        for _ in 0..300 {
            for _ in 0..random(2000) {
                // Mostly ascending: runs of all lengths, and equal timestamps.
                ns = if random(100) == 0 { random(100_000) } else { ns + random(3) };
                let shared = random(stack.len() + 1);
                stack.truncate(shared);
                stack.extend((0..random(4)).map(|_| random(1000) as u64));
                merge.push(sample(ns as u64, 0), &stack, shared);
                arrival += 1;
                queued.push((ns as u64, arrival, stack.clone()));
            }
            queued.sort();
            let watermark = random(100_000) as u64;
            let due = queued.partition_point(|(ns, ..)| *ns < watermark);
            for (ns, _, stack) in queued.drain(..due) {
                let popped = merge.pop(watermark).expect("one is due");
                assert_eq!((popped.sample.ns, popped.frames), (ns, &stack[..]));
                assert_eq!(out.get(..popped.shared), stack.get(..popped.shared));
                shares += usize::from(popped.shared > 0);
                out = stack;
            }
            assert!(merge.pop(watermark).is_none());
            assert_eq!(merge.oldest_arrival(), queued.iter().map(|it| it.1).min().unwrap_or(u64::MAX));
        }
        assert!(shares > 10_000, "{shares}");
    }
}
