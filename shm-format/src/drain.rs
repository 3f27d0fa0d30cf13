//! The reader's view of a region: extracts records from memory that another process is writing, or wrote before it
//! died, or fills with arbitrary values.
//!
//! What must never happen here: a panic, a loop whose bound comes from shared memory, a word read twice in the
//! expectation of the same value, or delivery of a payload that was incomplete when it was copied.

use core::ptr::NonNull;

use crate::atomic::{AtomicU64, Ordering};
use crate::chunk::Chunk;
use crate::chunk_reading::{ChunkPass, copy_words, mend_hint};
use crate::clock::{Anchor, ClockKind};
use crate::control::CountersSnapshot;
use crate::delivery::{ChunkInfo, DrainStats, Pass, RecordRef};
use crate::durable::{Log, LogPosition};
use crate::layout::{
    ANSWERS_LEN, CHUNK_HEADER, ChunkHeader, ControlPage, DURABLE_RECORD_MAX, Geometry, HeaderConstants,
    HeaderPage, Identity, LayoutError, MAGIC, Mode, PAGE, control_offset,
};
use crate::record::{DurableKind, DurableRecord};
use crate::request::Requests;
use crate::word::{Consumed, Phase, State};

/// Counts of one pass over the durable log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurableStats {
    /// Records delivered.
    pub records: u64,
    /// Records of an unknown kind.
    pub unknown: u64,
    /// Records seen so far that are still incomplete: torn, if the process is gone.
    pub pending: u64,
    /// Protocol violations, which no correct writer causes.
    pub violations: u64,
}

/// A region being read. There must be at most one reader at a time (ensured by a file lock). A successor continues
/// where the last one stopped, because the position in each chunk is kept in the region.
pub struct RegionReader {
    base: NonNull<u8>,
    geometry: Geometry,
    constants: HeaderConstants,
    mode: Mode,
    clock: ClockKind,
    log: LogPosition,
    /// Chunks have been visited before: there is no need to replay what an earlier reader took.
    begun: bool,
    /// Length of the mapping in bytes.
    len: usize,
}

// SAFETY: the memory is accessed through atomics only, and stays mapped as promised to `open`.
unsafe impl Send for RegionReader {}

impl RegionReader {
    /// Opens a region: copies its constants, checks the copy for consistency and against `len`, and never reads them
    /// again.
    ///
    /// # Safety
    /// `base..base + len` must be mapped readable and writable and stay so while the reader is used. The file behind it
    /// must be at least `len` bytes long (access beyond its end raises SIGBUS).
    pub unsafe fn open(base: NonNull<u8>, len: usize) -> Result<Self, LayoutError> {
        if !base.addr().get().is_multiple_of(PAGE) {
            return Err(LayoutError::Unaligned);
        }
        if len < 2 * PAGE {
            return Err(LayoutError::TooShort(2 * PAGE as u64, len as u64));
        }
        // SAFETY: page 0 is inside the mapping, aligned, and made of atomics.
        let header = unsafe { base.cast::<HeaderPage>().as_ref() };
        // Acquire: pairs with the release in `Region::format`: the constants are visible.
        let magic = header.magic.load(Ordering::Acquire);
        if magic != MAGIC {
            return Err(LayoutError::BadMagic(magic));
        }
        let mut words = [0; HeaderConstants::WORDS];
        for (copy, word) in words.iter_mut().zip(&header.words) {
            *copy = word.load(Ordering::Relaxed);
        }
        let constants = HeaderConstants::from_words(words);
        let (geometry, mode, clock) = constants.validate(len)?;
        Ok(Self { base, geometry, constants, mode, clock, log: LogPosition::default(), begun: false, len })
    }

    /// The process that wrote the region.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.constants.identity()
    }

    /// The sizes of the region.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What a full pool does with new records.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The trace clock.
    #[must_use]
    pub fn clock(&self) -> ClockKind {
        self.clock
    }

    /// The clocks when the region was made. Later readings are durable records.
    #[must_use]
    pub fn anchor(&self) -> Anchor {
        self.constants.anchor()
    }

    /// The request slots, if the region has memory for answers. The caller must back that memory first.
    #[must_use]
    pub fn requests(&self) -> Option<Requests<'_>> {
        let control = self.control();
        let answers = self.behind_chunks().get(..ANSWERS_LEN / 8)?;
        let region_nonce = self.constants.region_nonce;
        Some(Requests { line: &control.request, slots: &control.requests, answers, region_nonce })
    }

    /// The tables behind the answers: see [`BlocksView::find`](crate::BlocksView::find) and its like.
    #[must_use]
    pub fn tables(&self) -> &[AtomicU64] {
        self.behind_chunks().get(ANSWERS_LEN / 8..).unwrap_or_default()
    }

    /// The memory after the last chunk.
    fn behind_chunks(&self) -> &[AtomicU64] {
        let start = self.geometry.total_len();
        // SAFETY: the mapping extends from the end of the chunks (checked in `open`) to `len`; the offset is a multiple of the
        // page size; the memory is accessed through atomics only.
        unsafe {
            let first = self.base.add(start).cast::<AtomicU64>();
            core::slice::from_raw_parts(first.as_ptr(), (self.len - start) / 8)
        }
    }

    /// The current counters.
    #[must_use]
    pub fn counters(&self) -> CountersSnapshot {
        self.control().snapshot()
    }

    /// Whether at least one chunk is complete. A reader checks this between announcing sleep and sleeping. The hint
    /// suffices, because a writer rings after it has counted its chunk.
    #[must_use]
    pub fn has_complete(&self) -> bool {
        if self.control().fill.complete.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let complete =
            |index| self.chunk(index).is_some_and(|chunk| chunk.state().phase() == Phase::Complete);
        (0..self.backed()).any(complete)
    }

    /// Delivers the durable records completed since the last call, roughly in order of appending (a slow one comes
    /// later). Records are parsed from a private copy.
    pub fn durable(&mut self, sink: &mut dyn FnMut(DurableRecord<'_>)) -> DurableStats {
        let mut stats = DurableStats::default();
        let mut position = self.log;
        let log = self.log();
        let mut copy = [0u8; DURABLE_RECORD_MAX];
        let sound = position.advance(log, &mut |header, at| {
            let Some(copy) = copy.get_mut(..header.bytes()) else {
                stats.violations += 1;
                return;
            };
            copy_words(log.words.get(at + 1..).unwrap_or(&[]), copy);
            match DurableKind::from_number(header.kind()) {
                None => stats.unknown += 1,
                Some(kind) => match DurableRecord::parse(kind, copy) {
                    None => stats.violations += 1,
                    Some(record) => {
                        stats.records += 1;
                        sink(record);
                    }
                },
            }
        });
        self.log = position;
        stats.violations += u64::from(!sound);
        stats.pending = position.waiting() as u64;
        stats
    }

    /// Delivers the pool records not delivered before, chunk by chunk, in order within a chunk, and releases complete
    /// chunks to the writers. Across chunks, `sequence` orders the records of a thread and `ticks` those of different
    /// threads. `scratch` holds one payload at a time and should be as long as a chunk.
    ///
    /// The first call also delivers, marked `again`, what an earlier reader took from chunks that are not finished.
    ///
    /// Bounded by the size of the pool. If this process dies inside, its successor delivers the records of at most one
    /// chunk again, recognisable by (generation, sequence).
    pub fn drain(
        &mut self,
        pass: Pass,
        scratch: &mut [u8],
        sink: &mut dyn FnMut(ChunkInfo, RecordRef<'_>),
    ) -> DrainStats {
        self.drain_all(pass, scratch, None, sink)
    }

    /// Like [`drain`](Self::drain), but releases nothing and leaves the region unchanged: the reader's positions go to
    /// `positions` instead, one per chunk of [`chunks`](Self::chunks), initially zero. [`acknowledge`](Self::acknowledge)
    /// stores them in the region later. If this process dies before that, its successor gets all records again.
    pub fn drain_holding(
        &mut self,
        pass: Pass,
        scratch: &mut [u8],
        positions: &mut [u64],
        sink: &mut dyn FnMut(ChunkInfo, RecordRef<'_>),
    ) -> DrainStats {
        self.drain_all(pass, scratch, Some(positions), sink)
    }

    /// Acknowledges what was taken up to `position` of a chunk, a position from [`drain_holding`](Self::drain_holding): no
    /// successor will read it again, and a chunk that is entirely read is released. Returns whether it was released.
    pub fn acknowledge(&mut self, index: u32, position: u64) -> bool {
        let Some(chunk) = self.chunk(index as usize) else { return false };
        let state = chunk.state();
        let Some(at) = Consumed::of(position, state.generation()) else { return false };
        chunk.header.consumed.store(position, Ordering::Relaxed);
        let released = at.finished && state.phase() == Phase::Reading && chunk.release(state.generation());
        if released {
            mend_hint(self.bitmap(), index);
        }
        released
    }

    /// Number of chunks that may hold records.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.backed()
    }

    /// Number of those chunks that are free.
    #[must_use]
    pub fn free_chunks(&self) -> usize {
        let free =
            |index: &usize| self.chunk(*index).is_some_and(|chunk| chunk.state().phase() == Phase::Free);
        (0..self.backed()).filter(free).count()
    }

    /// Number of chunks that the writer has mapped, with or without memory.
    #[must_use]
    pub fn chunks_mapped(&self) -> usize {
        let mapped = self.control().backed.mapped.load(Ordering::Acquire);
        mapped.min(u64::from(self.geometry.chunk_capacity)) as usize
    }

    /// Tells the writers that the first `chunks` chunks have memory, which the caller must have ensured. Writers start
    /// to use them when no other chunk is free. Never reduces the number.
    pub fn offer(&self, chunks: usize) {
        self.control().backed.offered.fetch_max(chunks as u64, Ordering::Release);
    }

    /// Number of recordings that have begun after the first one.
    #[must_use]
    pub fn recordings(&self) -> u64 {
        self.control().backed.recordings.load(Ordering::Relaxed)
    }

    /// Begins another recording: ids of allocations from now on differ from those of earlier ones.
    pub fn begin_recording(&self) {
        self.control().backed.recordings.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells the writer that there are new unwind tables: modules without one may have one now.
    pub fn tell_tables(&self) {
        self.control().request.tables.fetch_add(1, Ordering::Relaxed);
    }

    fn drain_all(
        &mut self,
        pass: Pass,
        scratch: &mut [u8],
        mut positions: Option<&mut [u64]>,
        sink: &mut dyn FnMut(ChunkInfo, RecordRef<'_>),
    ) -> DrainStats {
        let mut stats = DrainStats::default();
        let replay = !core::mem::replace(&mut self.begun, true);
        for index in 0..self.backed() {
            let Some(chunk) = self.chunk(index) else { break };
            let outside = match &mut positions {
                None => None,
                Some(positions) => match positions.get_mut(index) {
                    // Backed since this pass began: visited by the next one.
                    None => break,
                    position => position,
                },
            };
            let index = index as u32;
            let walk = ChunkPass {
                chunk,
                index,
                generation: 0,
                pass,
                owned: true,
                replay,
                outside,
                stats: &mut stats,
            };
            walk.visit(&self.control().fill, self.bitmap(), scratch, sink);
        }
        stats
    }

    /// Completes the chunks of a thread that is known to have ended (its `ThreadEnd` was read), so that the next drain
    /// takes them. Returns the number of chunks.
    pub fn retire(&mut self, tid: u32, thread_seq: u32) -> u32 {
        let mut retired = 0;
        for index in 0..self.backed() {
            let Some(chunk) = self.chunk(index) else { break };
            let state = chunk.state();
            let owner = chunk.header.owner.load(Ordering::Relaxed);
            let owned = owner == u64::from(thread_seq) << 32 | u64::from(tid);
            if owned && state.phase() == Phase::Writing && chunk.complete(state.generation()) {
                self.control().fill.complete.fetch_add(1, Ordering::Relaxed);
                self.control().fill.writing.fetch_sub(1, Ordering::Relaxed);
                retired += 1;
            }
        }
        retired
    }

    fn backed(&self) -> usize {
        let chunks = self.control().backed.chunks.load(Ordering::Acquire);
        chunks.min(u64::from(self.geometry.chunk_capacity)) as usize
    }

    fn control(&self) -> &ControlPage {
        // SAFETY: the control page is inside the mapping (checked in `open`), aligned, and made of atomics.
        unsafe { self.base.add(control_offset()).cast::<ControlPage>().as_ref() }
    }

    fn log(&self) -> Log<'static> {
        let backed =
            self.control().backed.durable.load(Ordering::Acquire).min(self.geometry.durable_capacity);
        let words = self.words(self.geometry.durable_offset(), (backed / 8) as usize);
        // SAFETY: the control page is inside the mapping. The log is used only by `durable`, while `self` is borrowed,
        // so the memory stays mapped.
        let control = unsafe { self.base.add(control_offset()).cast::<ControlPage>().as_ref() };
        Log { reserve: &control.durable.reserve, words }
    }

    fn bitmap(&self) -> &[AtomicU64] {
        self.words(self.geometry.bitmap_offset(), self.geometry.bitmap_words())
    }

    fn chunk(&self, index: usize) -> Option<Chunk<'_>> {
        if index >= self.geometry.chunk_capacity as usize {
            return None;
        }
        let offset = self.geometry.chunk_offset(index as u32);
        // SAFETY: the index is inside the validated capacity, so the chunk is inside the mapping and aligned.
        let header = unsafe { self.base.add(offset).cast::<ChunkHeader>().as_ref() };
        let words = self.words(offset + CHUNK_HEADER, self.geometry.chunk_words());
        Some(Chunk { header, words, nonce: self.constants.region_nonce })
    }

    /// Words of the mapping as atomics; `offset` and `words` come from the validated private geometry.
    fn words<'a>(&self, offset: usize, words: usize) -> &'a [AtomicU64] {
        // SAFETY: every caller passes a range of the validated geometry, whose total length was checked against the
        // mapping. The memory is aligned and accessed through atomics only; no caller lets the slice outlive `self`, as
        // long as which it stays mapped.
        unsafe { core::slice::from_raw_parts(self.base.add(offset).cast().as_ptr(), words) }
    }
}

/// The state word for diagnostics.
impl core::fmt::Display for State {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?} {}", self.phase(), self.generation())
    }
}
