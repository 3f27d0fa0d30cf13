//! Decodes the records drained from one process's pool. Samples go to the merge; user stacks and the kernel records they
//! belong to go to the stitcher; anything invalid is counted.
//!
//! Consecutive records usually come from the same thread, and each stack usually refers to the one before. So per-thread
//! lookups are done once per run of records, and shared frames are not copied.

use std::collections::BTreeMap;

use selfwind_profile::locks::LOCK;
use selfwind_profile::profile_file::{Event, Sample};
use selfwind_profile::tracepoint::TRACEPOINT;
use shm_format::{
    ChunkInfo, KernelAnswer, LockNonce, RecordKind, RecordRef, Repeat, Scale, StackHead, TracepointRecord,
    Undecodable, is_event_nonce,
};

use crate::drain::chains::{Chains, DecodedStack};
use crate::drain::copies::{Copies, UnwoundCopy};
use crate::drain::counted_allocations::{CountedAllocations, More};
use crate::drain::merge::Merge;
use crate::drain::recurring_stacks::RecurringStacks;
use crate::drain::sequences::Sequences;
use crate::drain::stitch::{Stitcher, Writer, Written};
use crate::drain::unwinder::Unwinder;
use crate::target::translate::Translator;

/// Number of the `perf` source, whose stacks are joined with kernel records.
const PERF: u8 = 3;

/// The head of an event without a stack.
const NO_STACK: StackHead = StackHead { weight: 1, end: 0, source: TRACEPOINT, nonce: 0 };

/// Counts of what was drained from the pool.
#[derive(Default)]
pub(super) struct DrainCounts {
    pub(super) records: u64,
    pub(super) samples: u64,
    pub(super) weight: u64,
    /// Samples of events that threads count in batches: those that no clock triggers.
    pub(super) counted_late: u64,
    pub(super) bytes: u64,
    pub(super) void: u64,
    pub(super) torn: u64,
    pub(super) violations: u64,
    pub(super) undecodable: u64,
}

impl DrainCounts {
    /// Counts a sample of an event that threads count in batches.
    #[inline]
    pub(super) fn count_events(&mut self, events: u64) {
        self.samples += events;
        self.weight += events;
        self.counted_late += events;
    }

    /// Counts a record that could not be decoded.
    fn count_error(&mut self, why: Undecodable) {
        match why {
            Undecodable::Malformed => self.violations += 1,
            Undecodable::Unlinked => self.undecodable += 1,
        }
    }
}

/// An allocation with a stack of the log.
pub(super) struct Allocation {
    chunk: ChunkInfo,
    ticks: u64,
    repeat: Repeat,
}

/// Decodes the records of one pass.
pub(super) struct RecordDecoder<'a> {
    pub(super) scale: &'a Scale,
    pub(super) translator: &'a mut Translator,
    pub(super) stitcher: &'a mut Stitcher,
    pub(super) chains: &'a mut Chains,
    pub(super) stacks: &'a RecurringStacks,
    pub(super) counted: &'a mut CountedAllocations,
    /// Allocations with stacks that are not known yet.
    pub(super) deferred: &'a mut Vec<Allocation>,
    /// When the recording began (CLOCK_MONOTONIC, ns); earlier samples will be dropped.
    pub(super) begins_ns: u64,
    pub(super) copies: &'a mut Copies,
    /// Sequence numbers seen, by thread number.
    pub(super) threads: &'a mut BTreeMap<u32, Sequences>,
    pub(super) counts: &'a mut DrainCounts,
    pub(super) merge: &'a mut Merge,
    pub(super) state: PassState,
}

/// PassState kept from one record of a pass to the next.
#[derive(Default)]
pub(super) struct PassState {
    /// The thread of the current run of records, and the sequence numbers in that run.
    writer: Option<(u32, Sequences)>,
    /// The translator knows that this thread has run.
    has_run: bool,
    /// The record whose stack was pushed to the merge last, unless it is standalone.
    last_merged: Option<RecordId>,
    /// The frames of a stack of the log.
    frames: Vec<u64>,
}

/// Identifies a record: its chunk, and its sequence number in its thread.
#[derive(Clone, Copy, PartialEq, Eq)]
struct RecordId {
    chunk: u32,
    generation: u64,
    sequence: u64,
}

impl RecordId {
    fn of(chunk: &ChunkInfo, record: &RecordRef<'_>) -> Self {
        Self { chunk: chunk.index, generation: chunk.generation, sequence: record.sequence }
    }
}

impl PassState {
    /// Pushes a sample to the merge, passing only the frames that the merge does not have already.
    fn merge(&mut self, merge: &mut Merge, sample: Sample, stack: &DecodedStack<'_>, record: RecordId) {
        let follows =
            stack.base.is_some_and(|sequence| self.last_merged == Some(RecordId { sequence, ..record }));
        self.last_merged = (!stack.is_standalone).then_some(record);
        merge.push(sample, stack.frames, if follows { stack.shared } else { 0 });
    }
}

impl RecordDecoder<'_> {
    /// Handles one drained record.
    pub(super) fn decode(&mut self, chunk: &ChunkInfo, record: &RecordRef<'_>) {
        let new = !record.again;
        if new {
            self.note_sequence(chunk.thread_seq, record.sequence);
        }
        let written = match record.kind {
            RecordKind::Stack => self.stack(chunk, record),
            RecordKind::Repeat if new => {
                self.repeat(chunk, record);
                Written::Other
            }
            RecordKind::Tracepoint => {
                self.tracepoint(chunk, record);
                Written::Other
            }
            RecordKind::Answer if new => self.answer(chunk, record),
            RecordKind::Copy if new => {
                let ns = self.scale.monotonic_ns(record.ticks);
                self.counts.violations += u64::from(!self.copies.add_piece(chunk, record, ns));
                Written::Other
            }
            _ => Written::Other,
        };
        if new && (self.stitcher.has_rings() || !matches!(written, Written::Other)) {
            self.stitcher.written(chunk.thread_seq, record.sequence, written);
        }
    }

    /// Ends the pass: unwinds complete stack copies into samples, or compares them with recorded stacks.
    pub(super) fn end(mut self, process: u32, unwinder: &mut Unwinder, events: &mut Vec<Event>) {
        self.end_run();
        let Self { copies, translator, stitcher, counts, merge, .. } = self;
        copies.end_pass(process, unwinder, events, &mut |unwound| {
            let UnwoundCopy { sequence, chunk, ns, head, frames } = unwound;
            counts.samples += 1;
            counts.weight += u64::from(head.weight);
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

    fn end_run(&mut self) {
        if let Some((thread, sequences)) = self.state.writer.take() {
            self.threads.entry(thread).or_default().merge(sequences);
        }
    }

    #[inline]
    fn note_sequence(&mut self, thread: u32, sequence: u64) {
        match &mut self.state.writer {
            Some((writer, sequences)) if *writer == thread => sequences.add(sequence),
            _ => {
                self.end_run();
                let mut sequences = Sequences::default();
                sequences.add(sequence);
                (self.state.writer, self.state.has_run) = (Some((thread, sequences)), false);
            }
        }
    }

    /// Decodes an allocation whose stack is in the log. One whose stack was appended after the log was read is deferred.
    #[inline]
    fn repeat(&mut self, chunk: &ChunkInfo, record: &RecordRef<'_>) {
        let Some(repeat) = Repeat::parse(record.payload) else {
            return self.counts.count_error(Undecodable::Malformed);
        };
        let queued = match repeat {
            Repeat::Alike(alike) => self.counted.count(alike),
            Repeat::Single { .. } => None,
        };
        if let Some(queued) = queued {
            self.merge.count_again(queued);
            return self.counts.count_events(1);
        }
        let allocation = Allocation { chunk: *chunk, ticks: record.ticks, repeat };
        if !self.allocation(&allocation) {
            self.deferred.push(allocation);
        }
    }

    /// Queues a sample of an allocation; false if its stack is not known.
    pub(super) fn allocation(&mut self, allocation: &Allocation) -> bool {
        let Allocation { chunk: ChunkInfo { tid, thread_seq, .. }, ticks, repeat } = *allocation;
        let Some(frames) = self.stacks.frames(repeat.stack(), &mut self.state.frames) else { return false };
        self.counts.count_events(1);
        if !std::mem::replace(&mut self.state.has_run, true) {
            self.translator.ran(tid, thread_seq);
        }
        let ns = self.scale.monotonic_ns(ticks);
        self.state.last_merged = None;
        let nonce = match repeat {
            Repeat::Single { nonce, .. } => Some(nonce),
            Repeat::Alike(alike) if ns < self.begins_ns => self.counted.earlier_nonce(alike, thread_seq),
            Repeat::Alike(alike) => self.counted.nonce(More { alike, count: 1 }, thread_seq),
        };
        let Some(nonce) = nonce else {
            self.counts.count_error(Undecodable::Malformed);
            return true;
        };
        let head = StackHead { weight: 1, end: 0, source: Repeat::SOURCE, nonce };
        let queued = self.merge.push(self.translator.sample(tid, thread_seq, ns, head), frames, 0);
        if let Repeat::Alike(alike) = repeat {
            self.counted.queue(alike, queued);
        }
        true
    }

    /// Decodes the deferred allocations, after the log was read again.
    pub(super) fn decode_deferred(&mut self) {
        for allocation in std::mem::take(self.deferred) {
            self.state.has_run = false;
            if !self.allocation(&allocation) {
                self.counts.count_error(Undecodable::Unlinked);
            }
        }
    }

    /// Decodes a stack. It is a sample at once unless it has to be joined with kernel records.
    fn stack(&mut self, chunk: &ChunkInfo, record: &RecordRef<'_>) -> Written {
        let decoded = self.chains.decode(chunk, record, record.payload);
        if record.again {
            return Written::Other;
        }
        let stack = match decoded {
            Ok(stack) => stack,
            Err(error) => {
                self.counts.count_error(error);
                return Written::Other;
            }
        };
        let is_of_event = stack.head.source == PERF && is_event_nonce(stack.head.nonce);
        self.counts.samples += u64::from(!is_of_event);
        self.counts.weight += u64::from(stack.head.weight);
        self.counts.counted_late += u64::from(stack.head.source > PERF);
        if !std::mem::replace(&mut self.state.has_run, true) {
            self.translator.ran(chunk.tid, chunk.thread_seq);
        }
        let ns = self.scale.monotonic_ns(record.ticks);
        let mut sample = self.translator.sample(chunk.tid, chunk.thread_seq, ns, stack.head);
        if sample.source == LOCK {
            let wait = LockNonce(sample.nonce);
            sample.nonce = wait.in_units(|ticks| self.scale.span_ns(ticks)).0;
        }
        let needs_kernel_part = sample.source == PERF && sample.nonce != 0;
        if !needs_kernel_part && !self.copies.are_compared() {
            self.state.merge(self.merge, sample, &stack, RecordId::of(chunk, record));
            return Written::Other;
        }
        let sample = Sample { frames: stack.frames.iter().rev().copied().collect(), ..sample };
        if self.copies.are_compared() {
            self.copies.add_stack(record.sequence, sample.clone());
        }
        if needs_kernel_part {
            return Written::Stack(sample, chunk.index);
        }
        self.merge.push_owned(sample);
        self.state.last_merged = None;
        Written::Other
    }

    /// Decodes an event of one of the program's own tracepoints.
    fn tracepoint(&mut self, chunk: &ChunkInfo, record: &RecordRef<'_>) {
        let event = TracepointRecord::parse(record.payload);
        let decoded = event.as_ref().map(|event| match event.stack {
            Some(encoded) => self.chains.decode(chunk, record, encoded),
            None => {
                Ok(DecodedStack { head: NO_STACK, frames: &[], shared: 0, base: None, is_standalone: true })
            }
        });
        if record.again {
            return;
        }
        let (event, stack) = match (event, decoded) {
            (Some(event), Some(Ok(stack))) => (event, stack),
            (_, Some(Err(error))) => return self.counts.count_error(error),
            _ => return self.counts.count_error(Undecodable::Malformed),
        };
        self.counts.samples += 1;
        self.counts.weight += u64::from(stack.head.weight);
        self.counts.counted_late += 1;
        if !std::mem::replace(&mut self.state.has_run, true) {
            self.translator.ran(chunk.tid, chunk.thread_seq);
        }
        let ns = self.scale.monotonic_ns(record.ticks);
        let fields = Some(Box::new(self.translator.fields(&event)));
        let sample = self.translator.sample(chunk.tid, chunk.thread_seq, ns, stack.head);
        let sample = Sample { fields, ..sample };
        self.state.merge(self.merge, sample, &stack, RecordId::of(chunk, record));
    }

    /// Decodes a piece of a thread's kernel ring.
    fn answer(&mut self, chunk: &ChunkInfo, record: &RecordRef<'_>) -> Written {
        let Some(answer) = KernelAnswer::parse(record.payload) else {
            self.counts.count_error(Undecodable::Malformed);
            return Written::Other;
        };
        let writer = Writer { thread_seq: chunk.thread_seq, ns: self.scale.monotonic_ns(record.ticks) };
        Written::Answer(answer.head, answer.bytes.to_vec(), writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stack keeps all its frames, whatever was pushed between it and the one that it refers to.
    #[test]
    fn frames_are_shared_with_the_stack_that_went_to_the_merge_last() {
        let (mut merge, mut state) = (Merge::default(), PassState::default());
        let mut expected = Vec::new();
        let mut merged = |chunk, sequence, base: Option<u64>, is_standalone, frames: &[u64], is_shared| {
            let stack =
                DecodedStack { head: NO_STACK, frames, shared: base.map_or(0, |_| 2), base, is_standalone };
            let sample = Sample { ns: 1, ..Sample::default() };
            state.merge(&mut merge, sample, &stack, RecordId { chunk, generation: 4, sequence });
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
            let popped = merge.pop(u64::MAX).expect("as many come out");
            assert_eq!((popped.frames, popped.shared), (&frames[..], shared));
        }
    }
}
