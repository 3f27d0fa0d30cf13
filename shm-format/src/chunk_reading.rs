//! Reading one chunk: which of its records can be trusted to be complete, and how far the reader has got.
//!
//! What must never happen here: a loop whose bound comes from shared memory, or delivery of a payload that was
//! incomplete when it was copied.

use crate::atomic::{AtomicU64, Ordering};
use crate::chunk::Chunk;
use crate::delivery::{ChunkInfo, DrainStats, Pass, RecordRef};
use crate::layout::FillLine;
use crate::record::RecordKind;
use crate::word::{Consumed, Phase, RecordHeader, RecordState, tag};

/// One pass over one chunk.
pub(crate) struct ChunkPass<'a, 's> {
    pub(crate) chunk: Chunk<'a>,
    pub(crate) index: u32,
    pub(crate) generation: u64,
    pub(crate) pass: Pass,
    /// The reader has claimed the chunk, so no writer touches it.
    pub(crate) owned: bool,
    /// Also deliver what an earlier reader has taken.
    pub(crate) replay: bool,
    /// Where the reader's position is stored instead of in the region, so that the region keeps the records.
    pub(crate) outside: Option<&'a mut u64>,
    pub(crate) stats: &'s mut DrainStats,
}

impl ChunkPass<'_, '_> {
    /// Handles the chunk according to its phase.
    pub(crate) fn visit(
        mut self,
        fill: &FillLine,
        bitmap: &[AtomicU64],
        scratch: &mut [u8],
        sink: &mut dyn FnMut(ChunkInfo, RecordRef<'_>),
    ) {
        let state = self.chunk.state();
        self.generation = state.generation();
        match state.phase() {
            Phase::Free if self.pass == Pass::Look => return,
            Phase::Free => return mend_hint(bitmap, self.index),
            _ if self.pass == Pass::Look || state.phase() == Phase::Writing => {
                self.owned = false;
                return self.run(scratch, sink);
            }
            Phase::Complete if !self.chunk.claim(self.generation) => return,
            Phase::Complete => {
                fill.complete.fetch_sub(1, Ordering::Relaxed);
                self.stats.claimed += 1;
            }
            // An earlier reader died while it owned the chunk.
            _ => {}
        }
        self.run(scratch, sink);
        if self.outside.is_some() {
            return;
        }
        if self.chunk.release(self.generation) {
            self.stats.chunks += 1;
            mend_hint(bitmap, self.index);
        } else {
            self.stats.violations += 1;
        }
    }

    /// Delivers the chunk's records from the reader's position on, and advances the position.
    ///
    /// Which headers can be trusted: all below `sealed`, once that is set. Before that, as long as the complete words
    /// seen are fewer than `committed`, a committed record is still ahead, and every header below it has been written,
    /// because only the newest record of a chunk can lack its header.
    pub(crate) fn run(&mut self, scratch: &mut [u8], sink: &mut dyn FnMut(ChunkInfo, RecordRef<'_>)) {
        let (chunk, generation) = (self.chunk, self.generation);
        let stored =
            self.outside.as_deref().copied().filter(|position| Consumed::of(*position, generation).is_some());
        let before = match stored {
            Some(position) => position,
            None => chunk.header.consumed.load(Ordering::Relaxed),
        };
        let mut at = match self.pass {
            Pass::Look => Consumed::START,
            _ => Consumed::unpack(before, generation),
        };
        if at.finished {
            // An earlier reader may have taken everything and died before it released the chunk.
            if let Some(outside) = &mut self.outside {
                **outside = before;
            }
            return;
        }
        let size = chunk.words.len();
        let sealed = chunk.sealed(generation);
        let committed = chunk.committed(generation);
        if sealed.unwrap_or(0).max(committed).max(at.offset) > size {
            return self.violation(at);
        }
        let owner = chunk.header.owner.load(Ordering::Relaxed);
        let info = ChunkInfo {
            index: self.index,
            generation,
            tid: owner as u32,
            thread_seq: (owner >> 32) as u32,
            lost: chunk.header.lost.load(Ordering::Relaxed),
        };
        let first = chunk.header.first.load(Ordering::Relaxed);
        let taken = at.offset;
        if self.replay {
            at = Consumed { offset: 0, index: 0, ..at };
        }
        let mut complete = at.offset;
        // Every iteration advances by at least one word, so this ends within the chunk.
        while sealed.map_or(complete < committed, |end| at.offset < end) {
            let limit = sealed.unwrap_or(size);
            let Some(header) = chunk.record(at.offset, generation, limit) else {
                if self.owned || chunk.still(generation) {
                    self.violation(at);
                } else {
                    self.stats.overtaken += 1;
                }
                return;
            };
            let again = at.offset < taken;
            if header.state() == RecordState::Busy {
                // If an earlier reader skipped it, it has been counted.
                if !again && !self.passes_over(sealed.is_some(), at.waits) {
                    at.waits = if sealed.is_some() { at.waits + 1 } else { 0 };
                    break;
                }
                self.stats.torn += u64::from(!again);
            } else {
                let sequence = first.wrapping_add(at.index as u64);
                if !self.deliver(info, header, at.offset, (sequence, again), scratch, sink) {
                    self.stats.overtaken += 1;
                    return;
                }
                complete += header.words();
                at.waits = if again { at.waits } else { 0 };
            }
            at.offset += header.words();
            at.index += 1;
        }
        self.leave(at, sealed, before);
    }

    /// Copies a complete record and delivers it; false if a writer has taken the chunk meanwhile.
    fn deliver(
        &mut self,
        info: ChunkInfo,
        header: RecordHeader,
        at: usize,
        (sequence, again): (u64, bool),
        scratch: &mut [u8],
        sink: &mut dyn FnMut(ChunkInfo, RecordRef<'_>),
    ) -> bool {
        let chunk = self.chunk;
        let payload = at + 1 + usize::from(header.is_wide());
        let bytes = (at + header.words()).saturating_sub(payload) * 8;
        let copy = scratch.get_mut(..bytes);
        let fits = copy.is_some();
        let copy: &mut [u8] = copy.unwrap_or(&mut []);
        copy_words(chunk.words.get(payload..).unwrap_or(&[]), copy);
        let ticks = if header.is_wide() {
            chunk.load(at + 1)
        } else {
            chunk.header.ts_base.load(Ordering::Relaxed).wrapping_add(u64::from(header.delta()))
        };
        if !self.owned && !chunk.still(self.generation) {
            return false;
        }
        let new = u64::from(!again);
        match RecordKind::from_number(header.kind()) {
            Some(RecordKind::Void) => self.stats.void += new,
            Some(kind) if fits => {
                self.stats.records += new;
                self.stats.bytes += new * bytes as u64;
                sink(info, RecordRef { ticks, kind, sequence, again, payload: copy });
            }
            _ => self.stats.unknown += new,
        }
        true
    }

    /// Whether to skip an incomplete record, which is lost even if it is completed later: when nobody can complete it
    /// any more, or when its writer left the chunk many passes ago.
    fn passes_over(&self, sealed: bool, waits: u8) -> bool {
        let most = if self.pass == Pass::Look { 0 } else { Consumed::MAX_WAITS };
        self.owned || self.pass == Pass::Final || (sealed && waits >= most)
    }

    fn leave(&mut self, mut at: Consumed, sealed: Option<usize>, before: u64) {
        let over = self.owned || self.pass == Pass::Final;
        if over && sealed.is_none() {
            // Beyond the last committed record nothing is proven to be a header; this only affects counters.
            let next = self.chunk.record(at.offset, self.generation, self.chunk.words.len());
            let ours = |tag_seen| tag_seen == tag(self.generation, self.chunk.nonce);
            self.stats.torn += u64::from(next.is_some_and(|next| ours(next.tag())));
        }
        at.finished = over || sealed.is_some_and(|end| at.offset >= end);
        if self.outside.is_some() || at.pack(self.generation) != before {
            self.note(at);
        }
    }

    fn violation(&mut self, mut at: Consumed) {
        self.stats.violations += 1;
        at.finished = true;
        self.note(at);
    }

    /// Stores the reader's position.
    fn note(&mut self, at: Consumed) {
        let position = at.pack(self.generation);
        match &mut self.outside {
            Some(outside) => **outside = position,
            None if self.pass != Pass::Look => self.chunk.header.consumed.store(position, Ordering::Relaxed),
            None => {}
        }
    }
}

/// Sets the free bit of a free chunk if it is clear: the writer that cleared it may have died.
pub(crate) fn mend_hint(bitmap: &[AtomicU64], index: u32) {
    if let Some(word) = bitmap.get(index as usize / 64) {
        let bit = 1 << (index % 64);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

/// Copies words to little-endian bytes. Stops at the end of the shorter slice.
pub(crate) fn copy_words(words: &[AtomicU64], bytes: &mut [u8]) {
    let (whole, rest) = bytes.as_chunks_mut();
    for (word, bytes) in words.iter().zip(&mut *whole) {
        *bytes = word.load(Ordering::Relaxed).to_le_bytes();
    }
    if let Some(word) = words.get(whole.len()) {
        let value = word.load(Ordering::Relaxed).to_le_bytes();
        rest.iter_mut().zip(value).for_each(|(to, byte)| *to = byte);
    }
}
