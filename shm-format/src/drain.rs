//! The reader's view of a region: takes records out of memory that another process is writing, or wrote before it
//! died, or fills with lies.
//!
//! What must never happen here: a panic, a loop whose bound comes from shared memory, a word looked at twice and
//! expected to be the same, payload handed out that was not complete when it was copied.

use core::ptr::NonNull;

use crate::atomic::{AtomicU64, Ordering};
use crate::chunk::Chunk;
use crate::chunk_reading::{Walk, copy_words, mend_hint};
use crate::clock::{Anchor, ClockKind};
use crate::control::CountersSnapshot;
use crate::delivery::{ChunkInfo, DrainStats, Pass, RecordRef};
use crate::durable::{Log, LogPlace};
use crate::layout::{
    ANSWERS_LEN, CHUNK_HEADER, ChunkHeader, ControlPage, DURABLE_RECORD_MAX, Geometry, HeaderConstants,
    HeaderPage, Identity, LayoutError, MAGIC, Mode, PAGE, control_offset,
};
use crate::record::{DurableKind, DurableRecord};
use crate::request::Requests;
use crate::word::{Consumed, Phase, State};

/// What one reading of the durable log did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurableStats {
    /// Records delivered.
    pub records: u64,
    /// Records of a kind that this version does not know.
    pub unknown: u64,
    /// Records seen so far that are not complete yet: torn, if the process is gone.
    pub pending: u64,
    /// Things that no correct writer produces.
    pub violations: u64,
}

/// A region being read. There must be only one reader at a time (a file lock sees to it); a successor goes on where
/// the last one stopped, because the place in each chunk is kept in the region.
pub struct RegionReader {
    base: NonNull<u8>,
    geometry: Geometry,
    constants: HeaderConstants,
    mode: Mode,
    clock: ClockKind,
    log: LogPlace,
    /// Chunks have been visited: what this reader has taken it need not see again.
    begun: bool,
    has_answers: bool,
}

// SAFETY: the memory is only accessed through atomics and stays mapped by the promise of `open`.
unsafe impl Send for RegionReader {}

impl RegionReader {
    /// Opens a region: copies its constants, checks them against each other and against `len`, and never looks at
    /// them again.
    ///
    /// # Safety
    /// `base..base + len` must be mapped readable and writable and stay so while the reader is used; the file
    /// behind it must be at least `len` long (touching a page beyond its end is SIGBUS).
    pub unsafe fn open(base: NonNull<u8>, len: usize) -> Result<Self, LayoutError> {
        if !base.addr().get().is_multiple_of(PAGE) {
            return Err(LayoutError::Unaligned);
        }
        if len < 2 * PAGE {
            return Err(LayoutError::TooShort(2 * PAGE as u64, len as u64));
        }
        // SAFETY: page 0 is inside the mapping, aligned, and made of atomics.
        let header = unsafe { base.cast::<HeaderPage>().as_ref() };
        // Acquire of the release in `Region::format`: the constants are visible.
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
        let has_answers = len - geometry.total_len() >= ANSWERS_LEN;
        Ok(Self {
            base,
            geometry,
            constants,
            mode,
            clock,
            log: LogPlace::default(),
            begun: false,
            has_answers,
        })
    }

    /// Who wrote the region.
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

    /// The clocks when the region was made; later readings are durable records.
    #[must_use]
    pub fn anchor(&self) -> Anchor {
        self.constants.anchor()
    }

    /// Where to ask threads for their stacks, if the region has room for answers. The caller backs that memory first.
    #[must_use]
    pub fn requests(&self) -> Option<Requests<'_>> {
        if !self.has_answers {
            return None;
        }
        let control = self.control();
        // SAFETY: the answers follow the last chunk and are inside the mapping (checked in `open`); the offset is a
        // multiple of a page; the memory is only accessed through atomics.
        let answers = unsafe {
            let first = self.base.add(self.geometry.total_len()).cast::<AtomicU64>();
            core::slice::from_raw_parts(first.as_ptr(), ANSWERS_LEN / 8)
        };
        let region_nonce = self.constants.region_nonce;
        Some(Requests { line: &control.request, slots: &control.requests, answers, region_nonce })
    }

    /// The counters now.
    #[must_use]
    pub fn counters(&self) -> CountersSnapshot {
        self.control().snapshot()
    }

    /// Whether at least one chunk is complete: what a reader looks at between announcing sleep and sleeping. The hint
    /// is enough to see none: a writer rings after it has counted its chunk.
    #[must_use]
    pub fn has_complete(&self) -> bool {
        if self.control().fill.complete.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let complete =
            |index| self.chunk(index).is_some_and(|chunk| chunk.state().phase() == Phase::Complete);
        (0..self.backed()).any(complete)
    }

    /// Delivers the durable records that became complete since the last call, about in order of their appending
    /// (one that took long comes later). Records are parsed from a private copy.
    pub fn durable(&mut self, sink: &mut dyn FnMut(DurableRecord<'_>)) -> DurableStats {
        let mut stats = DurableStats::default();
        let mut place = self.log;
        let log = self.log();
        let mut copy = [0u8; DURABLE_RECORD_MAX];
        let sound = place.advance(log, &mut |header, at| {
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
        self.log = place;
        stats.violations += u64::from(!sound);
        stats.pending = place.waiting() as u64;
        stats
    }

    /// Delivers pool records that were not delivered before, chunk by chunk, in order within each chunk, and gives
    /// complete chunks back to the writers. Order across chunks is by `sequence` within a thread and by `ticks`
    /// between threads. `scratch` takes one payload at a time and should be as long as a chunk.
    ///
    /// The first call also delivers, as `again`, what an earlier reader took from chunks that are not finished.
    ///
    /// Bounded by the size of the pool. If this process dies inside, at most the records of one chunk are delivered
    /// again by its successor; (generation, sequence) tells.
    pub fn drain(
        &mut self,
        pass: Pass,
        scratch: &mut [u8],
        sink: &mut dyn FnMut(ChunkInfo, RecordRef<'_>),
    ) -> DrainStats {
        self.drain_all(pass, scratch, None, sink)
    }

    /// As [`drain`](Self::drain), but nothing is given back, and nothing in the region says that it was taken: the
    /// reader's place in each chunk goes to `places`, which begins as zeros, one for each of [`chunks`](Self::chunks).
    /// [`acknowledge`](Self::acknowledge) does the rest. If this process dies before, its successor has all of it.
    pub fn drain_holding(
        &mut self,
        pass: Pass,
        scratch: &mut [u8],
        places: &mut [u64],
        sink: &mut dyn FnMut(ChunkInfo, RecordRef<'_>),
    ) -> DrainStats {
        self.drain_all(pass, scratch, Some(places), sink)
    }

    /// What was taken up to that place of a chunk, which [`drain_holding`](Self::drain_holding) gave, is safe: no
    /// successor need see it, and if it is all, the writers may have the chunk again. Whether they got it.
    pub fn acknowledge(&mut self, index: u32, place: u64) -> bool {
        let Some(chunk) = self.chunk(index as usize) else { return false };
        let state = chunk.state();
        let Some(at) = Consumed::of(place, state.generation()) else { return false };
        chunk.header.consumed.store(place, Ordering::Relaxed);
        let released = at.finished && state.phase() == Phase::Reading && chunk.release(state.generation());
        if released {
            mend_hint(self.bitmap(), index);
        }
        released
    }

    /// Chunks that may hold records now.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.backed()
    }

    /// Chunks of these that are free now.
    #[must_use]
    pub fn free_chunks(&self) -> usize {
        let free =
            |index: &usize| self.chunk(*index).is_some_and(|chunk| chunk.state().phase() == Phase::Free);
        (0..self.backed()).filter(free).count()
    }

    /// Chunks that could have memory: the writer has mapped them.
    #[must_use]
    pub fn chunks_mapped(&self) -> usize {
        let mapped = self.control().backed.mapped.load(Ordering::Acquire);
        mapped.min(u64::from(self.geometry.chunk_capacity)) as usize
    }

    /// Tells the writers that the first `chunks` chunks have memory, of which the caller has made sure. They take them
    /// up when no other is free. Never less than before.
    pub fn offer(&self, chunks: usize) {
        self.control().backed.offered.fetch_max(chunks as u64, Ordering::Release);
    }

    fn drain_all(
        &mut self,
        pass: Pass,
        scratch: &mut [u8],
        mut places: Option<&mut [u64]>,
        sink: &mut dyn FnMut(ChunkInfo, RecordRef<'_>),
    ) -> DrainStats {
        let mut stats = DrainStats::default();
        let replay = !core::mem::replace(&mut self.begun, true);
        for index in 0..self.backed() {
            let Some(chunk) = self.chunk(index) else { break };
            let held = match &mut places {
                None => None,
                Some(places) => match places.get_mut(index) {
                    // Backed since: the next time.
                    None => break,
                    place => place,
                },
            };
            let index = index as u32;
            let walk =
                Walk { chunk, index, generation: 0, pass, owned: true, replay, held, stats: &mut stats };
            walk.visit(&self.control().fill, self.bitmap(), scratch, sink);
        }
        stats
    }

    /// Completes the chunks of a thread that is known to be gone (its `ThreadEnd` was read), so that the next drain
    /// takes what it left behind. The number of chunks.
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
        // SAFETY: the control page is inside the mapping (checked in `open`), aligned and made of atomics.
        unsafe { self.base.add(control_offset()).cast::<ControlPage>().as_ref() }
    }

    fn log(&self) -> Log<'static> {
        let backed =
            self.control().backed.durable.load(Ordering::Acquire).min(self.geometry.durable_capacity);
        let words = self.words(self.geometry.durable_offset(), (backed / 8) as usize);
        // SAFETY: the control page is inside the mapping; the log is used only while `self` is borrowed by the one
        // caller, `durable`, so the memory is still mapped.
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
        // mapping; the memory is aligned, only accessed through atomics, and mapped as long as `self` is used, and
        // no caller lets the slice outlive `self`.
        unsafe { core::slice::from_raw_parts(self.base.add(offset).cast().as_ptr(), words) }
    }
}

/// The state word as the reader prints it in diagnostics.
impl core::fmt::Display for State {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?} {}", self.phase(), self.generation())
    }
}
