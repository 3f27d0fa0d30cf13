//! Brings samples of many rings into the order of time, in bounded memory.
//!
//! A ring is in order per thread only. A sample waits until the watermark, a time before which every ring
//! has been drained, passes it. When too many wait, the oldest go out early: order is a courtesy of the
//! profile, completeness is a promise.
//!
//! Samples that come in order of time are a run, which keeps of each stack what it does not share with the one before:
//! only runs are compared, and a stack is put together when it goes out. What must never happen here: a stack with
//! frames of another.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use selfwind_profile::profile_file::{LentSample, Sample};

/// Words of memory that may wait (8 bytes each).
const WORDS_LIMIT: usize = 1 << 20;
/// Samples of a run, whose memory is free when the last one is out.
const RUN_MOST: usize = 512;
/// Words that a sample takes beside its frames.
const WAITING_WORDS: usize = size_of::<Waiting>() / 8;
/// Runs without samples whose memory is kept for the next ones.
const FREE_MOST: usize = 16;

/// Samples that wait for their turn.
#[derive(Default)]
pub(crate) struct Merge {
    runs: Vec<Run>,
    /// The first sample of each run that has any.
    heads: BinaryHeap<Reverse<Head>>,
    /// Runs that have none.
    free: Vec<usize>,
    /// The run that the last sample has come to.
    last: Option<usize>,
    /// The run that the last one went out of.
    given: Option<usize>,
    /// A run whose last sample is lent.
    spent: Option<usize>,
    words: usize,
    arrivals: u64,
}

/// Its order is that in which samples go out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Head {
    ns: u64,
    /// Equal times stay as their thread wrote them.
    arrival: u64,
    run: usize,
}

/// Samples in the order of their times, and of their coming.
#[derive(Default)]
struct Run {
    samples: Vec<Waiting>,
    /// So many of them are out.
    out: usize,
    /// The frames of all stacks, from the root, without those shared with the one before.
    frames: Vec<u64>,
    /// So many of these are of samples that are out.
    frames_out: usize,
    /// The stack of the last one that went out, from the root.
    stack: Vec<u64>,
}

/// A sample without its frames.
struct Waiting {
    sample: Sample,
    /// Frames shared with the one before in its run, and others.
    shared: u32,
    new: u32,
}

impl Run {
    /// Whether a sample of this time may follow.
    fn takes(&self, ns: u64) -> bool {
        self.samples.len() < RUN_MOST && self.samples.last().is_some_and(|last| last.sample.ns <= ns)
    }

    /// Moves to the next sample; how many of its frames are those of the one before.
    fn advance(&mut self) -> usize {
        let Some(waiting) = self.samples.get(self.out) else { return 0 };
        let (shared, end) = (waiting.shared as usize, self.frames_out + waiting.new as usize);
        self.stack.truncate(shared);
        self.stack.extend_from_slice(&self.frames[self.frames_out..end]);
        (self.out, self.frames_out) = (self.out + 1, end);
        shared
    }

    /// Samples and frames.
    fn len(&self) -> (usize, usize) {
        (self.samples.len(), self.frames.len())
    }

    fn clear(&mut self) {
        self.samples.clear();
        self.frames.clear();
        (self.out, self.frames_out) = (0, 0);
    }

    /// Memory that it takes, in words.
    fn words(&self) -> usize {
        self.samples.len() * WAITING_WORDS + self.frames.len()
    }
}

impl Merge {
    /// Takes a sample, whose frames are lent, from the root; so many of them are those of the call before.
    pub(crate) fn push(&mut self, sample: Sample, frames: &[u64], shared: usize) {
        self.arrivals += 1;
        let (run, shared) = match self.last.filter(|&last| self.runs[last].takes(sample.ns)) {
            Some(last) => (last, shared),
            None => (self.begin(sample.ns), 0),
        };
        let new = frames.get(shared..).unwrap_or(&[]);
        let run = &mut self.runs[run];
        run.frames.extend_from_slice(new);
        run.samples.push(Waiting { sample, shared: shared as u32, new: new.len() as u32 });
        self.words += WAITING_WORDS + new.len();
    }

    /// Takes a sample with its frames.
    pub(super) fn push_whole(&mut self, mut sample: Sample) {
        let mut frames = std::mem::take(&mut sample.frames);
        frames.reverse();
        self.push(sample, &frames, 0);
    }

    /// Begins a run with a sample of this time.
    fn begin(&mut self, ns: u64) -> usize {
        self.forget_spent();
        // Chunk after chunk, they come in equal numbers.
        let before = self.last.map_or((0, 0), |last| self.runs[last].len());
        let run = self.free.pop().unwrap_or_else(|| {
            self.runs.push(Run::default());
            self.runs.len() - 1
        });
        self.runs[run].samples.reserve(before.0);
        self.runs[run].frames.reserve(before.1);
        self.heads.push(Reverse(Head { ns, arrival: self.arrivals, run }));
        self.last = Some(run);
        run
    }

    /// True while more wait than may.
    pub(super) fn is_full(&self) -> bool {
        self.words > WORDS_LIMIT
    }

    /// Samples that have come so far: the number of the last one.
    pub(super) fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// The least number of those that wait; every lower one is out.
    pub(crate) fn oldest(&self) -> u64 {
        self.heads.iter().map(|Reverse(head)| head.arrival).min().unwrap_or(u64::MAX)
    }

    /// The oldest sample, if it is older than `watermark` (nanoseconds).
    pub(crate) fn pop(&mut self, watermark: u64) -> Option<LentSample<'_>> {
        self.forget_spent();
        let mut first = self.heads.peek_mut()?;
        let Reverse(head) = *first;
        if head.ns >= watermark && watermark != u64::MAX {
            return None;
        }
        let run = &mut self.runs[head.run];
        let shared = run.advance();
        match run.samples.get(run.out) {
            Some(next) => {
                *first = Reverse(Head { ns: next.sample.ns, arrival: head.arrival + 1, run: head.run });
            }
            None => {
                PeekMut::pop(first);
                self.spent = Some(head.run);
                // The next one begins another.
                self.last = self.last.filter(|&last| last != head.run);
            }
        }
        let before = self.given.replace(head.run);
        let sample = &run.samples[run.out - 1].sample;
        Some(LentSample { sample, frames: &run.stack, shared: if before == self.given { shared } else { 0 } })
    }

    /// Frees the memory of a run whose last sample was lent.
    fn forget_spent(&mut self) {
        let Some(spent) = self.spent.take() else { return };
        let run = &mut self.runs[spent];
        self.words -= run.words();
        match self.free.len() {
            ..FREE_MOST => run.clear(),
            _ => *run = Run::default(),
        }
        self.free.push(spent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ns: u64, tid: u32) -> Sample {
        Sample { ns, tid, ..Sample::default() }
    }

    fn popped(merge: &mut Merge, watermark: u64) -> Option<(u64, u32)> {
        merge.pop(watermark).map(|lent| (lent.sample.ns, lent.sample.tid))
    }

    #[test]
    fn order_of_time_up_to_the_watermark() {
        let mut merge = Merge::default();
        for (ns, tid) in [(5, 1), (9, 1), (1, 2), (5, 2), (5, 3), (u64::MAX, 9)] {
            merge.push(sample(ns, tid), &[], 0);
        }
        let out: Vec<_> = std::iter::from_fn(|| popped(&mut merge, 9)).collect();
        assert_eq!(out, [(1, 2), (5, 1), (5, 2), (5, 3)]);
        assert_eq!((merge.arrivals(), merge.oldest()), (6, 2));
        // Late: it goes out at once, behind what is out already.
        merge.push(sample(3, 4), &[], 0);
        assert_eq!(popped(&mut merge, 9), Some((3, 4)));
        assert_eq!(popped(&mut merge, u64::MAX), Some((9, 1)));
        assert_eq!(popped(&mut merge, u64::MAX), Some((u64::MAX, 9)));
        assert_eq!((popped(&mut merge, u64::MAX), merge.words), (None, 0));
    }

    #[test]
    fn memory_is_bounded_and_nothing_is_lost() {
        let mut merge = Merge::default();
        let deep = [1; 1000];
        let mut out = 0;
        for ns in 0..10_000 {
            merge.push(sample(ns, 0), &deep, 0);
            while merge.is_full() && merge.pop(u64::MAX).is_some() {
                out += 1;
            }
            assert!(merge.words <= WORDS_LIMIT);
        }
        while merge.pop(u64::MAX).is_some() {
            out += 1;
        }
        assert_eq!((out, merge.words, merge.oldest()), (10_000, 0, u64::MAX));
        let kept =
            |run: &Run| run.samples.capacity() * WAITING_WORDS + run.frames.capacity() + run.stack.capacity();
        let kept: usize = merge.runs.iter().map(kept).sum();
        assert!(kept <= FREE_MOST * 2 * RUN_MOST * (WAITING_WORDS + deep.len()), "{kept} words are kept");
    }

    /// Against all of them sorted at once: whatever the times, what goes out in between, and what stacks share.
    #[test]
    fn every_stack_comes_out_whole_and_in_order() {
        let mut state = 7u64;
        let mut random = |limit: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % limit
        };
        let mut merge = Merge::default();
        let mut waiting: Vec<(u64, u64, Vec<u64>)> = Vec::new();
        let (mut stack, mut out): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
        let (mut ns, mut arrival, mut shares) = (0, 0, 0);
        for _ in 0..300 {
            for _ in 0..random(2000) {
                // Mostly forwards: runs of all lengths, and equal times.
                ns = if random(100) == 0 { random(100_000) } else { ns + random(3) };
                let shared = random(stack.len() + 1);
                stack.truncate(shared);
                stack.extend((0..random(4)).map(|_| random(1000) as u64));
                merge.push(sample(ns as u64, 0), &stack, shared);
                arrival += 1;
                waiting.push((ns as u64, arrival, stack.clone()));
            }
            waiting.sort();
            let watermark = random(100_000) as u64;
            let due = waiting.partition_point(|(ns, ..)| *ns < watermark);
            for (ns, _, stack) in waiting.drain(..due) {
                let lent = merge.pop(watermark).expect("one is due");
                assert_eq!((lent.sample.ns, lent.frames), (ns, &stack[..]));
                assert_eq!(out.get(..lent.shared), stack.get(..lent.shared));
                shares += usize::from(lent.shared > 0);
                out = stack;
            }
            assert!(merge.pop(watermark).is_none());
            assert_eq!(merge.oldest(), waiting.iter().map(|it| it.1).min().unwrap_or(u64::MAX));
        }
        assert!(shares > 10_000, "{shares}");
    }
}
