//! The copies of stacks of one process: put together from their pieces, unwound, and made samples or compared.
//!
//! The pieces of a copy follow each other in their thread, but a thread that changes chunks may have later ones drained
//! before earlier ones. What is not whole a pass later never will be: the handler has counted it as lost.

use std::collections::BTreeMap;

use selfwind_profile::profile_file::{Event, Sample};
use shm_format::{ChunkInfo, CopyPiece, RecordRef, StackHead};
use unwind::End;

use crate::drain::comparison::compare;
use crate::drain::unwinder::{Stack, Unwinder};

/// Passes that a part waits for the rest of it.
const PATIENCE: u64 = 2;

/// A record by its thread's number and its own in the thread.
type Place = (u32, u64);

/// What waits, and since when.
struct Waiting<T> {
    pass: u64,
    value: T,
}

/// Pieces of one copy.
#[derive(Default)]
struct Pieces {
    parts: BTreeMap<u32, Vec<u8>>,
    /// How many there are, once it is known.
    count: Option<u32>,
}

impl Pieces {
    fn is_whole(&self) -> bool {
        self.count.is_some_and(|count| self.parts.len() == count as usize)
    }
}

/// A whole copy that became a stack.
pub(super) struct Unwound {
    /// Where its first record was.
    pub(super) sequence: u64,
    /// The chunk of the last one.
    pub(super) chunk: ChunkInfo,
    /// When it was taken, CLOCK_MONOTONIC.
    pub(super) ns: u64,
    /// What the sample stands for.
    pub(super) head: StackHead,
    /// Its frames, from the root.
    pub(super) frames: Vec<u64>,
}

/// A whole copy.
struct Copy {
    place: Place,
    /// Of its pieces.
    count: u64,
    chunk: ChunkInfo,
    ns: u64,
    bytes: Vec<u8>,
}

/// The copies of one process.
#[derive(Default)]
pub(super) struct Copies {
    /// Stacks are recorded beside them.
    compares: bool,
    /// By the place of the first.
    pieces: BTreeMap<Place, Waiting<Pieces>>,
    whole: Vec<Copy>,
    /// Beside a stack, by the place of that.
    beside: BTreeMap<Place, Waiting<(Stack, u64)>>,
    stacks: BTreeMap<Place, Waiting<Sample>>,
    pass: u64,
    /// The process has said that it copies.
    expected: bool,
    /// Copies that no handler writes.
    pub(super) malformed: u64,
    /// Copies whose stack does not reach its root.
    pub(super) truncated: u64,
}

impl Copies {
    /// The process says how it unwinds.
    pub(super) fn choose(&mut self, unwind: &[u8]) {
        self.compares = unwind == b"both";
        self.expected = self.compares || unwind == b"copy" || unwind == b"copy-code";
    }

    /// True if modules are of interest.
    pub(super) fn are_expected(&self) -> bool {
        self.expected
    }

    /// A piece was drained. False if it is none.
    pub(super) fn piece(&mut self, chunk: &ChunkInfo, record: &RecordRef<'_>, ns: u64) -> bool {
        let Some(piece) = CopyPiece::parse(record.payload) else { return false };
        let Some(first) = record.sequence.checked_sub(piece.number.into()) else { return false };
        let place = (chunk.thread_seq, first);
        let new = Waiting { pass: self.pass, value: Pieces::default() };
        let pieces = &mut self.pieces.entry(place).or_insert(new).value;
        pieces.parts.insert(piece.number, piece.bytes.to_vec());
        if piece.is_last {
            pieces.count = Some(piece.number + 1);
        }
        if pieces.is_whole() {
            let parts = self.pieces.remove(&place).map(|whole| whole.value.parts).unwrap_or_default();
            let count = parts.len() as u64;
            let bytes = parts.into_values().collect::<Vec<_>>().concat();
            self.whole.push(Copy { place, count, chunk: *chunk, ns, bytes });
        }
        true
    }

    /// True if copies may belong to stacks.
    pub(super) fn are_beside_stacks(&self) -> bool {
        self.compares
    }

    /// A stack was drained that a copy may belong to.
    pub(super) fn stack(&mut self, sequence: u64, sample: Sample) {
        let place = (sample.thread_seq, sequence);
        self.stacks.insert(place, Waiting { pass: self.pass, value: sample });
    }

    /// Unwinds what has come since the last pass. Stacks go to `take`, comparisons to `events`.
    pub(super) fn end_pass(
        &mut self,
        process: u32,
        unwinder: &mut Unwinder,
        events: &mut Vec<Event>,
        take: &mut dyn FnMut(Unwound),
    ) {
        for Copy { place: (thread, sequence), count, chunk, ns, bytes } in std::mem::take(&mut self.whole) {
            let Some(stack) = Stack::read(&bytes) else {
                self.malformed += 1;
                continue;
            };
            if stack.head.beside {
                let next = (thread, sequence + count);
                self.beside.insert(next, Waiting { pass: self.pass, value: (stack, bytes.len() as u64) });
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
            take(Unwound { sequence, chunk, ns, head, frames });
        }
        self.compare(unwinder, events);
        self.pass += 1;
        let oldest = self.pass.saturating_sub(PATIENCE);
        self.pieces.retain(|_, waiting| waiting.pass >= oldest);
        self.beside.retain(|_, waiting| waiting.pass >= oldest);
        self.stacks.retain(|_, waiting| waiting.pass >= oldest);
    }

    fn compare(&mut self, unwinder: &mut Unwinder, events: &mut Vec<Event>) {
        for (place, beside) in std::mem::take(&mut self.beside) {
            match self.stacks.remove(&place) {
                Some(sample) => {
                    let (stack, recorded) = beside.value;
                    let comparison = compare(&sample.value, stack, recorded, unwinder);
                    events.extend(comparison.map(Event::Comparison));
                }
                None => drop(self.beside.insert(place, beside)),
            }
        }
    }
}
