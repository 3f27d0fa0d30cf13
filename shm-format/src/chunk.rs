//! One chunk and its state machine: who may take it, and who may complete it.
//!
//! ```text
//!            take (writer)              complete (last committer)
//!   FREE g ----------------> WRITING g+1 ----------------> COMPLETE g+1
//!     ^                         ^    |                        |  |
//!     |        give_back        |    |   overwrite (writer)   |  |
//!     +-------------------------|----+   generation + 1       |  |
//!     |                         +-----------------------------+  |
//!     |        release (reader)                claim (reader)    |
//!     +--------------------------- READING g+1 <-----------------+
//! ```
//!
//! Every arrow is one compare-and-swap of the whole state word, so a generation has one owner at a time. Payload is
//! read only after an acquire of the state that names its generation, and never by the writer.

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::layout::ChunkHeader;
use crate::word::{Phase, RecordHeader, RecordState, State, Tagged, tag};

/// A chunk in memory: its header, its words, and the region's nonce for the record tags.
#[derive(Clone, Copy)]
pub struct Chunk<'a> {
    pub(crate) header: &'a ChunkHeader,
    pub(crate) words: &'a [AtomicU64],
    pub(crate) nonce: u64,
}

impl<'a> Chunk<'a> {
    /// The current state. Everything that the last owner wrote is visible afterwards.
    pub(crate) fn state(&self) -> State {
        // Acquire: pairs with the release in `step` by which the previous owner handed the chunk over.
        State(self.header.state.load(Ordering::Acquire))
    }

    fn step(&self, from: State, to: State) -> bool {
        // Release: publishes this side's writes to the next owner. Acquire: makes the previous owner's visible.
        self.header.state.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Writer: takes a chunk in state `from`: free, or complete in overwrite mode. Returns the new generation.
    pub(crate) fn take(&self, from: State) -> Option<u64> {
        let generation = from.generation().wrapping_add(1) & (u64::MAX >> 2);
        if !self.step(from, State::new(generation, Phase::Writing)) {
            return None;
        }
        // A reader that is still copying the old generation and reads a word of the new one must then also see the new
        // state: pairs with the acquire fence in `still`.
        fence(Ordering::Release);
        Some(generation)
    }

    /// Writer: returns a chunk in which nothing was reserved.
    pub(crate) fn give_back(&self, generation: u64) -> bool {
        self.step(State::new(generation, Phase::Writing), State::new(generation, Phase::Free))
    }

    /// Writer, or the reader on behalf of a writer that is gone: no more records will follow.
    pub(crate) fn complete(&self, generation: u64) -> bool {
        self.step(State::new(generation, Phase::Writing), State::new(generation, Phase::Complete))
    }

    /// Reader: takes a complete chunk.
    pub(crate) fn claim(&self, generation: u64) -> bool {
        self.step(State::new(generation, Phase::Complete), State::new(generation, Phase::Reading))
    }

    /// Reader: frees the chunk for writers.
    pub(crate) fn release(&self, generation: u64) -> bool {
        self.step(State::new(generation, Phase::Reading), State::new(generation, Phase::Free))
    }

    /// Reader: whether everything copied before this call belongs to that generation.
    pub(crate) fn still(&self, generation: u64) -> bool {
        fence(Ordering::Acquire);
        let now = State(self.header.state.load(Ordering::Relaxed));
        now.generation() == generation && now.phase() != Phase::Free
    }

    /// Writer: prepares a taken chunk for its first record. `committed` is stored last and carries the generation.
    pub(crate) fn prepare(&self, generation: u64, owner: u64, ts_base: u64, first: u64, lost: u64) {
        self.header.ts_base.store(ts_base, Ordering::Relaxed);
        self.header.owner.store(owner, Ordering::Relaxed);
        self.header.first.store(first, Ordering::Relaxed);
        self.header.lost.store(lost, Ordering::Relaxed);
        // Release: the reader acquires `committed`.
        self.header.committed.store(Tagged::new(generation, 0).0, Ordering::Release);
    }

    /// Reader: words committed in that generation; 0 until the writer has prepared the chunk.
    pub(crate) fn committed(&self, generation: u64) -> usize {
        // Acquire: pairs with `local_add` in `commit` and with `prepare`: every header below a committed record is
        // visible.
        Tagged(self.header.committed.load(Ordering::Acquire)).words(generation).unwrap_or(0)
    }

    /// Reader: where the records of that generation end, once the writer has left the chunk.
    pub(crate) fn sealed(&self, generation: u64) -> Option<usize> {
        // Acquire: pairs with the release in `seal`: every header below the end is visible.
        Tagged(self.header.sealed.load(Ordering::Acquire)).words(generation)
    }

    /// The word at that index; 0 outside the chunk.
    pub(crate) fn load(&self, at: usize) -> u64 {
        match self.words.get(at) {
            Some(word) => word.load(Ordering::Relaxed),
            None => 0,
        }
    }

    pub(crate) fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Reader: the record header at `at`, if it belongs to this generation and the record ends by `limit` words.
    pub(crate) fn record(&self, at: usize, generation: u64, limit: usize) -> Option<RecordHeader> {
        // Acquire: pairs with the release in `Reservation::commit`: the payload is visible.
        let header = RecordHeader(self.words.get(at)?.load(Ordering::Acquire));
        let least = if header.is_wide() { 2 } else { 1 };
        let fits = header.words() >= least && at.checked_add(header.words())? <= limit;
        let ours = header.state() != RecordState::None && header.tag() == tag(generation, self.nonce);
        (fits && ours).then_some(header)
    }
}
