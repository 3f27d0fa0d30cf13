//! The packed 64-bit words of the protocol: bit arithmetic only, no memory.
//!
//! Every word that both sides race on is one `u64`, so that one load gives a consistent value. Unpacking is total: any
//! bit pattern gives fields within their width, which the caller checks against the geometry.

/// What a chunk is used for: the low two bits of its state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Without an owner. Any writer may take it.
    Free,
    /// Owned by one writer thread, which appends to it.
    Writing,
    /// Owned by the reader, which copies it.
    Reading,
    /// Full or closed. The reader may take it; in overwrite mode, so may a writer.
    Complete,
}

/// Chunk state: `generation << 2 | phase`. The generation grows by one at each step to `Writing` and never wraps
/// in practice: 62 bits at one recycling per nanosecond last 146 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(pub u64);

impl State {
    /// Packs a generation (62 bits) and a phase.
    #[must_use]
    pub const fn new(generation: u64, phase: Phase) -> Self {
        let phase = match phase {
            Phase::Free => 0,
            Phase::Writing => 1,
            Phase::Reading => 2,
            Phase::Complete => 3,
        };
        Self(generation << 2 | phase)
    }

    /// The phase in the low two bits.
    #[must_use]
    pub const fn phase(self) -> Phase {
        match self.0 & 3 {
            0 => Phase::Free,
            1 => Phase::Writing,
            2 => Phase::Reading,
            _ => Phase::Complete,
        }
    }

    /// Number of times the chunk has been taken for writing.
    #[must_use]
    pub const fn generation(self) -> u64 {
        self.0 >> 2
    }
}

/// A word count that is valid for one generation only: `generation:48 | words:16`.
///
/// Used for `committed` and `sealed`, so that a value of an earlier owner of the chunk reads as "none" and nothing has
/// to be reset before the chunk is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged(pub u64);

impl Tagged {
    /// Packs the low 48 bits of the generation and a number of words.
    #[must_use]
    pub const fn new(generation: u64, words: u16) -> Self {
        Self(generation << 16 | words as u64)
    }

    /// The word count, if the tag is that of `generation`.
    #[must_use]
    pub const fn words(self, generation: u64) -> Option<usize> {
        if self.0 >> 16 == generation & ((1 << 48) - 1) { Some((self.0 & 0xffff) as usize) } else { None }
    }
}

/// A thread's position in its chunk; in the thread's private memory.
///
/// `sequence:24 | chunk:16 | last:12 | end:12`. `end` and `last` count words after the chunk header. `last` is the
/// length of the newest record, which begins at `end - last`, or 0 if the thread has no record in the chunk. The
/// sequence grows with each record, so that a word seen before a nested handler ran can only recur after 2^24 nested
/// records that end at the same position of the same chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reserve(pub(crate) u64);

impl Reserve {
    pub(crate) const NO_CHUNK: u16 = u16::MAX;
    const FIELD: u64 = 0xfff;
    const LAST_SHIFT: u32 = 12;
    const CHUNK_SHIFT: u32 = 24;
    const SEQUENCE_SHIFT: u32 = 40;

    /// Before the first chunk of a thread.
    pub(crate) const EMPTY: Self = Self((Self::NO_CHUNK as u64) << Self::CHUNK_SHIFT);

    /// The start of `chunk` (or of no chunk), with the sequence of `self`.
    pub(crate) const fn at_start_of(self, chunk: u16) -> Self {
        let sequence = self.0 >> Self::SEQUENCE_SHIFT << Self::SEQUENCE_SHIFT;
        Self(sequence | (chunk as u64) << Self::CHUNK_SHIFT)
    }

    /// The position after one more record of `words` words; the caller has checked that it fits.
    pub(crate) const fn advanced(self, words: usize) -> Self {
        let words = words as u64 & Self::FIELD;
        // One addition: the end does not overflow, and the sequence is in the top bits.
        let more = 1 << Self::SEQUENCE_SHIFT | words << Self::LAST_SHIFT | words;
        Self((self.0 & !(Self::FIELD << Self::LAST_SHIFT)).wrapping_add(more))
    }

    pub(crate) const fn chunk(self) -> u16 {
        (self.0 >> Self::CHUNK_SHIFT) as u16
    }

    pub(crate) const fn end(self) -> usize {
        (self.0 & Self::FIELD) as usize
    }

    pub(crate) const fn last(self) -> usize {
        (self.0 >> Self::LAST_SHIFT & Self::FIELD) as usize
    }

    /// The full sequence nearest to `near` whose low bits are these.
    pub(crate) const fn sequence(self, near: u64) -> u64 {
        let distance = (self.0 >> Self::SEQUENCE_SHIFT).wrapping_sub(near) << Self::SEQUENCE_SHIFT;
        near.wrapping_add((distance as i64 >> Self::SEQUENCE_SHIFT) as u64)
    }
}

/// Whether a record's payload is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// No header: nothing was written here in this generation.
    None,
    /// Reserved: the length is valid, the payload is not.
    Busy,
    /// Complete.
    Done,
}

/// Record header: `state:2 | words:12 | wide:1 | kind:5 | tag:12 | delta:32` from the top bit down.
///
/// `words` counts the header itself. `delta` is in ticks from the chunk's `ts_base`; when it does not fit, `wide` is
/// set and the first payload word holds the full time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader(pub u64);

impl RecordHeader {
    /// Packs a header. Bits of `words` and `kind` beyond their widths are dropped.
    #[must_use]
    pub const fn new(state: RecordState, words: usize, wide: bool, kind: u8, tag: u16, delta: u32) -> Self {
        let state = match state {
            RecordState::None => 0,
            RecordState::Busy => 1,
            RecordState::Done => 2,
        };
        Self(
            state << 62
                | (words as u64 & 0xfff) << 50
                | (wide as u64) << 49
                | (kind as u64 & 0x1f) << 44
                | (tag as u64 & 0xfff) << 32
                | delta as u64,
        )
    }

    /// The same header, marked as complete.
    #[must_use]
    pub const fn done(self) -> Self {
        Self(self.0 & !(3 << 62) | 2 << 62)
    }

    /// The state; the unassigned bit pattern 3 reads as `None`.
    #[must_use]
    pub const fn state(self) -> RecordState {
        match self.0 >> 62 {
            1 => RecordState::Busy,
            2 => RecordState::Done,
            _ => RecordState::None,
        }
    }

    /// Length in words, header included.
    #[must_use]
    pub const fn words(self) -> usize {
        (self.0 >> 50 & 0xfff) as usize
    }

    /// Whether the first payload word is the full time.
    #[must_use]
    pub(crate) const fn is_wide(self) -> bool {
        self.0 >> 49 & 1 != 0
    }

    /// The record kind's number.
    #[must_use]
    pub const fn kind(self) -> u8 {
        (self.0 >> 44 & 0x1f) as u8
    }

    /// The check value: see [`tag`].
    #[must_use]
    pub const fn tag(self) -> u16 {
        (self.0 >> 32 & 0xfff) as u16
    }

    /// Ticks since the chunk's `ts_base`.
    #[must_use]
    pub const fn delta(self) -> u32 {
        self.0 as u32
    }
}

/// The check value of a record: low 12 bits of the chunk's generation xor the region's nonce.
#[must_use]
pub const fn tag(generation: u64, nonce: u64) -> u16 {
    ((generation ^ nonce) & 0xfff) as u16
}

/// The reader's position in a chunk: `generation:30 | finished:1 | waits:7 | index:13 | offset:13`.
///
/// Only the reader writes it. `offset` counts words after the chunk header, `index` the records before it, and `waits`
/// the passes that found the same incomplete record in a chunk that its writer has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Consumed {
    pub(crate) offset: usize,
    pub(crate) index: usize,
    pub(crate) waits: u8,
    pub(crate) finished: bool,
}

impl Consumed {
    pub(crate) const START: Self = Self { offset: 0, index: 0, waits: 0, finished: false };
    pub(crate) const MAX_WAITS: u8 = 127;

    /// The position in `generation`: the start, if the word belongs to another generation.
    pub(crate) const fn unpack(word: u64, generation: u64) -> Self {
        match Self::of(word, generation) {
            Some(consumed) => consumed,
            None => Self::START,
        }
    }

    /// The position in `generation`; `None` if the word belongs to another generation.
    pub(crate) const fn of(word: u64, generation: u64) -> Option<Self> {
        if word >> 34 != generation & ((1 << 30) - 1) {
            return None;
        }
        Some(Self {
            offset: (word & 0x1fff) as usize,
            index: (word >> 13 & 0x1fff) as usize,
            waits: (word >> 26 & 0x7f) as u8,
            finished: word >> 33 & 1 != 0,
        })
    }

    pub(crate) const fn pack(self, generation: u64) -> u64 {
        generation << 34
            | (self.finished as u64) << 33
            | (self.waits as u64 & 0x7f) << 26
            | (self.index as u64 & 0x1fff) << 13
            | (self.offset as u64 & 0x1fff)
    }
}
