//! What becomes of the records of one process's pool, as they are drained: samples, which go to the merge; halves of
//! samples, which wait for each other; and counts of what is neither.
//!
//! A record is most often one of many of its thread in a row, and its stack most often refers to the one before: what is
//! the same for all of them is looked up once, and frames that are shared are not copied.

use std::collections::BTreeMap;

use selfwind_profile::locks::LOCK;
use selfwind_profile::profile_file::{Event, Sample};
use selfwind_profile::tracepoint::TRACEPOINT;
use shm_format::{
    ChunkInfo, KernelAnswer, LockNonce, RecordKind, RecordRef, Scale, StackHead, TracepointRecord,
    Undecodable,
};

use crate::drain::chains::{Chains, WholeStack};
use crate::drain::copies::{Copies, Unwound};
use crate::drain::merge::Merge;
use crate::drain::sequences::Sequences;
use crate::drain::stitch::{Stitcher, Writer, Written};
use crate::drain::unwinder::Unwinder;
use crate::target::translate::Translator;

/// Number of the source whose stacks answer the kernel.
const PERF: u8 = 3;

/// The head of an event without a stack.
const NO_STACK: StackHead = StackHead { weight: 1, end: 0, source: TRACEPOINT, nonce: 0 };

/// What the reader found in the ring.
#[derive(Default)]
pub(super) struct Found {
    pub(super) records: u64,
    pub(super) samples: u64,
    pub(super) weight: u64,
    /// Samples that are events of tracepoints.
    pub(super) tracepoints: u64,
    pub(super) bytes: u64,
    pub(super) void: u64,
    pub(super) torn: u64,
    pub(super) violations: u64,
    pub(super) undecodable: u64,
}

impl Found {
    /// A record gave no sample.
    fn miss(&mut self, why: Undecodable) {
        match why {
            Undecodable::Malformed => self.violations += 1,
            Undecodable::Unlinked => self.undecodable += 1,
        }
    }
}

/// Takes in the records of one pass.
pub(super) struct Intake<'a> {
    pub(super) scale: &'a Scale,
    pub(super) translator: &'a mut Translator,
    pub(super) stitcher: &'a mut Stitcher,
    pub(super) chains: &'a mut Chains,
    pub(super) copies: &'a mut Copies,
    /// By thread number.
    pub(super) threads: &'a mut BTreeMap<u32, Sequences>,
    pub(super) found: &'a mut Found,
    pub(super) merge: &'a mut Merge,
    pub(super) state: State,
}

/// Where a pass is.
#[derive(Default)]
pub(super) struct State {
    /// The thread whose records come, and those that have come in a row.
    writer: Option<(u32, Sequences)>,
    /// It is known to have run.
    has_run: bool,
    /// The record whose stack went to the merge last, if others may refer to it.
    merged: Option<Place>,
}

/// A record: its chunk, and its number among its thread's.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    chunk: u32,
    generation: u64,
    sequence: u64,
}

impl Place {
    fn of(chunk: &ChunkInfo, record: &RecordRef<'_>) -> Self {
        Self { chunk: chunk.index, generation: chunk.generation, sequence: record.sequence }
    }
}

impl State {
    /// A sample goes to the merge, with so much of its stack as is not there.
    fn merge(&mut self, merge: &mut Merge, sample: Sample, stack: &WholeStack<'_>, place: Place) {
        let follows = stack.before.is_some_and(|sequence| self.merged == Some(Place { sequence, ..place }));
        merge.push(sample, stack.frames, if follows { stack.kept } else { 0 });
        self.merged = (!stack.is_aside).then_some(place);
    }
}

impl Intake<'_> {
    /// A record was drained.
    pub(super) fn take(&mut self, chunk: &ChunkInfo, record: &RecordRef<'_>) {
        let new = !record.again;
        if new {
            self.saw(chunk.thread_seq, record.sequence);
        }
        let written = match record.kind {
            RecordKind::Stack => self.stack(chunk, record),
            RecordKind::Tracepoint => {
                self.tracepoint(chunk, record);
                Written::Other
            }
            RecordKind::Answer if new => self.answer(chunk, record),
            RecordKind::Copy if new => {
                let ns = self.scale.monotonic_ns(record.ticks);
                self.found.violations += u64::from(!self.copies.piece(chunk, record, ns));
                Written::Other
            }
            _ => Written::Other,
        };
        if new && (self.stitcher.expects() || !matches!(written, Written::Other)) {
            self.stitcher.written(chunk.thread_seq, record.sequence, written);
        }
    }

    /// No more records come: makes samples of copies, or compares them.
    pub(super) fn end(mut self, process: u32, unwinder: &mut Unwinder, events: &mut Vec<Event>) {
        self.end_writer();
        let Self { copies, translator, stitcher, found, merge, .. } = self;
        copies.end_pass(process, unwinder, events, &mut |unwound| {
            let Unwound { sequence, chunk, ns, head, frames } = unwound;
            found.samples += 1;
            found.weight += u64::from(head.weight);
            translator.ran(chunk.tid, chunk.thread_seq);
            let sample = translator.sample(chunk.tid, chunk.thread_seq, ns, head);
            if sample.source == PERF && sample.nonce != 0 {
                let sample = Sample { frames: frames.into_iter().rev().collect(), ..sample };
                stitcher.written(chunk.thread_seq, sequence, Written::Stack(sample, chunk.index));
            } else {
                merge.push(sample, &frames, 0);
            }
        });
    }

    fn end_writer(&mut self) {
        if let Some((thread, sequences)) = self.state.writer.take() {
            self.threads.entry(thread).or_default().add(sequences);
        }
    }

    #[inline]
    fn saw(&mut self, thread: u32, sequence: u64) {
        match &mut self.state.writer {
            Some((writer, sequences)) if *writer == thread => sequences.saw(sequence),
            _ => {
                self.end_writer();
                let mut sequences = Sequences::default();
                sequences.saw(sequence);
                (self.state.writer, self.state.has_run) = (Some((thread, sequences)), false);
            }
        }
    }

    /// A stack: a sample, unless it waits for what the kernel recorded.
    fn stack(&mut self, chunk: &ChunkInfo, record: &RecordRef<'_>) -> Written {
        let decoded = self.chains.decode(chunk, record, record.payload);
        if record.again {
            return Written::Other;
        }
        let stack = match decoded {
            Ok(stack) => stack,
            Err(error) => {
                self.found.miss(error);
                return Written::Other;
            }
        };
        self.found.samples += 1;
        self.found.weight += u64::from(stack.head.weight);
        if !std::mem::replace(&mut self.state.has_run, true) {
            self.translator.ran(chunk.tid, chunk.thread_seq);
        }
        let ns = self.scale.monotonic_ns(record.ticks);
        let mut sample = self.translator.sample(chunk.tid, chunk.thread_seq, ns, stack.head);
        if sample.source == LOCK {
            let wait = LockNonce(sample.nonce);
            sample.nonce = wait.in_units(|ticks| self.scale.span_ns(ticks)).0;
        }
        let waits = sample.source == PERF && sample.nonce != 0;
        if !waits && !self.copies.are_beside_stacks() {
            self.state.merge(self.merge, sample, &stack, Place::of(chunk, record));
            return Written::Other;
        }
        let sample = Sample { frames: stack.frames.iter().rev().copied().collect(), ..sample };
        if self.copies.are_beside_stacks() {
            self.copies.stack(record.sequence, sample.clone());
        }
        if waits {
            return Written::Stack(sample, chunk.index);
        }
        self.merge.push_whole(sample);
        self.state.merged = None;
        Written::Other
    }

    /// An event of the program's own.
    fn tracepoint(&mut self, chunk: &ChunkInfo, record: &RecordRef<'_>) {
        let event = TracepointRecord::parse(record.payload);
        let decoded = event.as_ref().map(|event| match event.stack {
            Some(encoded) => self.chains.decode(chunk, record, encoded),
            None => Ok(WholeStack { head: NO_STACK, frames: &[], kept: 0, before: None, is_aside: true }),
        });
        if record.again {
            return;
        }
        let (event, stack) = match (event, decoded) {
            (Some(event), Some(Ok(stack))) => (event, stack),
            (_, Some(Err(error))) => return self.found.miss(error),
            _ => return self.found.miss(Undecodable::Malformed),
        };
        self.found.samples += 1;
        self.found.weight += u64::from(stack.head.weight);
        self.found.tracepoints += 1;
        if !std::mem::replace(&mut self.state.has_run, true) {
            self.translator.ran(chunk.tid, chunk.thread_seq);
        }
        let ns = self.scale.monotonic_ns(record.ticks);
        let fields = Some(Box::new(self.translator.fields(&event)));
        let sample = self.translator.sample(chunk.tid, chunk.thread_seq, ns, stack.head);
        let sample = Sample { fields, ..sample };
        self.state.merge(self.merge, sample, &stack, Place::of(chunk, record));
    }

    /// A part of what the kernel recorded.
    fn answer(&mut self, chunk: &ChunkInfo, record: &RecordRef<'_>) -> Written {
        let Some(answer) = KernelAnswer::parse(record.payload) else {
            self.found.miss(Undecodable::Malformed);
            return Written::Other;
        };
        let writer = Writer { thread_seq: chunk.thread_seq, ns: self.scale.monotonic_ns(record.ticks) };
        Written::Answer(answer.head, answer.bytes.to_vec(), writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stack is whole, whatever came to the merge between it and the one that it refers to.
    #[test]
    fn frames_are_shared_with_the_stack_that_went_to_the_merge_last() {
        let (mut merge, mut state) = (Merge::default(), State::default());
        let mut expected = Vec::new();
        let mut merged = |chunk, sequence, before: Option<u64>, is_aside, frames: &[u64], is_shared| {
            let stack =
                WholeStack { head: NO_STACK, frames, kept: before.map_or(0, |_| 2), before, is_aside };
            let sample = Sample { ns: 1, ..Sample::default() };
            state.merge(&mut merge, sample, &stack, Place { chunk, generation: 4, sequence });
            expected.push((frames.to_vec(), if is_shared { 2 } else { 0 }));
        };
        merged(1, 5, None, false, &[1, 2, 3], false);
        merged(1, 6, Some(5), false, &[1, 2, 4], true);
        merged(1, 8, Some(6), false, &[1, 2], true);
        // Another thread's, whose number is the same.
        merged(2, 8, None, false, &[9, 8, 7], false);
        merged(1, 9, Some(8), false, &[1, 2, 5], false);
        // One that belongs to no chain, which none refers to.
        merged(1, 10, None, true, &[6], false);
        merged(1, 11, Some(9), false, &[1, 2], false);
        merged(1, 12, None, true, &[], false);
        merged(1, 13, Some(12), false, &[3, 2], false);
        for (frames, shared) in expected {
            let lent = merge.pop(u64::MAX).expect("as many come out");
            assert_eq!((lent.frames, lent.shared), (&frames[..], shared));
        }
    }
}
