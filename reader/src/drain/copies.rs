//! Reassembles the stack copies of one process (`--unwind copy`, `--unwind both`) from their pieces and has them unwound.
//! The result becomes a sample, or is compared with the thread's own walk.
//!
//! A thread writes the pieces of a copy in order, but if it changes chunks during a pass, later pieces may be drained before
//! earlier ones. A copy that is incomplete one pass later stays incomplete: the handler has counted it as lost.

use std::collections::BTreeMap;

use selfwind_profile::profile_file::{Event, Sample};
use shm_format::{ChunkInfo, CopyPiece, RecordRef, StackHead};
use unwind::End;

use crate::drain::comparison::compare;
use crate::drain::unwinder::{Stack, Unwinder};

/// Passes for which an incomplete copy, or one half of a comparison, is kept.
const PASSES_MAX: u64 = 2;

/// Identifies a record: thread number, and sequence number in that thread.
type RecordId = (u32, u64);

/// A value and the pass in which it arrived.
struct Arrived<T> {
    pass: u64,
    value: T,
}

/// The pieces of one copy so far.
#[derive(Default)]
struct Pieces {
    parts: BTreeMap<u32, Vec<u8>>,
    /// How many there will be; known once the last one has arrived.
    count: Option<u32>,
}

impl Pieces {
    fn is_complete(&self) -> bool {
        self.count.is_some_and(|count| self.parts.len() == count as usize)
    }
}

/// The stack unwound from a complete copy.
pub(super) struct UnwoundCopy {
    /// Sequence number of its first record.
    pub(super) sequence: u64,
    /// The chunk of its last record.
    pub(super) chunk: ChunkInfo,
    /// When it was copied (CLOCK_MONOTONIC).
    pub(super) ns: u64,
    /// Weight, source and how the walk ended.
    pub(super) head: StackHead,
    /// Its frames, root first.
    pub(super) frames: Vec<u64>,
}

/// A complete copy.
struct CompleteCopy {
    record: RecordId,
    /// Number of pieces.
    count: u64,
    chunk: ChunkInfo,
    ns: u64,
    bytes: Vec<u8>,
}

/// The copies of one process.
#[derive(Default)]
pub(super) struct Copies {
    /// Threads also walk their stacks (`--unwind both`), so each copy is compared.
    compares: bool,
    /// Incomplete copies, by their first record.
    pieces: BTreeMap<RecordId, Arrived<Pieces>>,
    complete: Vec<CompleteCopy>,
    /// Copies to compare, by the record of the stack they belong to.
    to_compare: BTreeMap<RecordId, Arrived<(Stack, u64)>>,
    stacks: BTreeMap<RecordId, Arrived<Sample>>,
    pass: u64,
    /// The process copies stacks.
    expected: bool,
    /// Copies that do not have the format the handler writes.
    pub(super) malformed: u64,
    /// Copies whose walk did not reach the root.
    pub(super) truncated: u64,
}

impl Copies {
    /// Takes the value of the process's `unwind` setting.
    pub(super) fn set_mode(&mut self, unwind: &[u8]) {
        self.compares = unwind == b"both";
        self.expected = self.compares || unwind == b"copy" || unwind == b"copy-code";
    }

    /// True if the process copies stacks, so that the unwinder needs its modules.
    pub(super) fn are_expected(&self) -> bool {
        self.expected
    }

    /// Adds a drained piece. False if it is malformed.
    pub(super) fn add_piece(&mut self, chunk: &ChunkInfo, record: &RecordRef<'_>, ns: u64) -> bool {
        let Some(piece) = CopyPiece::parse(record.payload) else { return false };
        let Some(first) = record.sequence.checked_sub(piece.number.into()) else { return false };
        let id = (chunk.thread_seq, first);
        let new = Arrived { pass: self.pass, value: Pieces::default() };
        let pieces = &mut self.pieces.entry(id).or_insert(new).value;
        pieces.parts.insert(piece.number, piece.bytes.to_vec());
        if piece.is_last {
            pieces.count = Some(piece.number + 1);
        }
        if pieces.is_complete() {
            let parts = self.pieces.remove(&id).map(|complete| complete.value.parts).unwrap_or_default();
            let count = parts.len() as u64;
            let bytes = parts.into_values().collect::<Vec<_>>().concat();
            self.complete.push(CompleteCopy { record: id, count, chunk: *chunk, ns, bytes });
        }
        true
    }

    /// True if each copy is to be compared with a stack.
    pub(super) fn are_compared(&self) -> bool {
        self.compares
    }

    /// Adds a drained stack that a copy may belong to.
    pub(super) fn add_stack(&mut self, sequence: u64, sample: Sample) {
        let id = (sample.thread_seq, sequence);
        self.stacks.insert(id, Arrived { pass: self.pass, value: sample });
    }

    /// Unwinds the copies completed in this pass. Stacks go to `emit`, comparisons to `events`.
    pub(super) fn end_pass(
        &mut self,
        process: u32,
        unwinder: &mut Unwinder,
        events: &mut Vec<Event>,
        emit: &mut dyn FnMut(UnwoundCopy),
    ) {
        for CompleteCopy { record: (thread, sequence), count, chunk, ns, bytes } in
            std::mem::take(&mut self.complete)
        {
            let Some(stack) = Stack::read(&bytes) else {
                self.malformed += 1;
                continue;
            };
            if stack.head.beside {
                let next = (thread, sequence + count);
                self.to_compare.insert(next, Arrived { pass: self.pass, value: (stack, bytes.len() as u64) });
                continue;
            }
            let (mut frames, end) = unwinder.walk(process, ns, &stack);
            frames.reverse();
            self.truncated += u64::from(end != End::Root);
            let head = StackHead {
                weight: stack.head.weight,
                end: end as u8,
                source: stack.head.source,
                nonce: stack.head.nonce,
            };
            emit(UnwoundCopy { sequence, chunk, ns, head, frames });
        }
        self.compare(unwinder, events);
        self.pass += 1;
        let oldest = self.pass.saturating_sub(PASSES_MAX);
        self.pieces.retain(|_, arrived| arrived.pass >= oldest);
        self.to_compare.retain(|_, arrived| arrived.pass >= oldest);
        self.stacks.retain(|_, arrived| arrived.pass >= oldest);
    }

    fn compare(&mut self, unwinder: &mut Unwinder, events: &mut Vec<Event>) {
        for (id, copy) in std::mem::take(&mut self.to_compare) {
            match self.stacks.remove(&id) {
                Some(sample) => {
                    let (stack, recorded) = copy.value;
                    let comparison = compare(&sample.value, stack, recorded, unwinder);
                    events.extend(comparison.map(Event::Comparison));
                }
                None => drop(self.to_compare.insert(id, copy)),
            }
        }
    }
}
