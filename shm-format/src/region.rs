//! The writer's view of a region: where everything is, from private numbers only.
//!
//! Geometry, mode and backed sizes are kept in the target's private memory. No position of a write comes from shared
//! memory, so no value there can make a write go out of bounds.

use core::ptr::NonNull;

use crate::atomic::{AtomicU64, Ordering};
use crate::chunk::Chunk;
use crate::chunk_space::ChunkSpace;
use crate::clock::{Anchor, ClockKind};
use crate::control::{Control, Loss};
use crate::durable::Log;
use crate::layout::{
    ANSWERS_LEN, CHUNK_HEADER, ChunkHeader, FillLine, Geometry, HeaderConstants, HeaderPage, Identity,
    LayoutError, MAGIC, Mode, PAGE, SearchLine, control_offset,
};
use crate::pool::Pool;
use crate::record::{DurableKind, DurableRecord};

/// A region being written by this process. What a record needs is in the first cache line.
#[repr(C, align(64))]
pub struct Region {
    base: NonNull<u8>,
    chunk_words: usize,
    nonce: u64,
    chunks: ChunkSpace,
    geometry: Geometry,
    mode: Mode,
    chunks_backed: AtomicU64,
    durable_backed: AtomicU64,
    durable_open: AtomicU64,
    answers: Option<NonNull<u8>>,
}

// SAFETY: the pointers refer to memory that is accessed through atomics only, and that the creator of the region
// promised to keep mapped.
unsafe impl Send for Region {}
// SAFETY: as for Send; in addition, all shared state is atomic.
unsafe impl Sync for Region {}

impl Region {
    /// Initializes a region in zeroed memory and publishes it (the magic is stored last).
    ///
    /// Everything below [`Geometry::durable_offset`] must have memory, as must the first `durable_backed` bytes after
    /// it and the first `chunks_backed` chunks. The rest may be a hole until
    /// [`set_durable_backed`](Self::set_durable_backed) and [`set_chunks_backed`](Self::set_chunks_backed) say
    /// otherwise. The mapping may end after any chunk without memory ([`add_chunks`](Self::add_chunks)). If `len`
    /// exceeds the geometry by [`ANSWERS_LEN`], requests from outside can be answered there; the requester backs that
    /// memory.
    ///
    /// # Safety
    /// `base..base + len` must be mapped readable, writable, shared and zeroed, used by no other writer, and must stay
    /// mapped as long as the `Region` and everything borrowed from it is used.
    pub unsafe fn format(
        base: NonNull<u8>,
        len: usize,
        geometry: &Geometry,
        identity: &Identity,
        mode: Mode,
        clock: ClockKind,
        anchor: Anchor,
    ) -> Result<Self, LayoutError> {
        geometry.validate()?;
        if !base.addr().get().is_multiple_of(PAGE) {
            return Err(LayoutError::Unaligned);
        }
        let least = geometry.chunk_offset(geometry.chunks_backed.max(1));
        if len < least {
            return Err(LayoutError::TooShort(least as u64, len as u64));
        }
        // SAFETY: page 0 is inside the mapping (checked) and aligned, and zero is a valid value of it.
        let header = unsafe { base.cast::<HeaderPage>().as_ref() };
        let constants = HeaderConstants::new(geometry, identity, mode, clock, anchor);
        for (word, value) in header.words.iter().zip(constants.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        let (chunk_size, capacity) = (geometry.chunk_size as usize, geometry.chunk_capacity as usize);
        let mapped = ((len - geometry.chunk_offset(0)) / chunk_size).min(capacity);
        // SAFETY: chunk 0 is inside the mapping (checked).
        let chunks = unsafe { base.add(geometry.chunk_offset(0)) };
        let has_answers = len >= geometry.total_len() + ANSWERS_LEN;
        // SAFETY: `has_answers` says that the mapping continues after the last chunk.
        let answers = has_answers.then(|| unsafe { base.add(geometry.total_len()) });
        let region = Self {
            base,
            geometry: *geometry,
            chunks: ChunkSpace::new(chunks, chunk_size, mapped, capacity),
            chunk_words: geometry.chunk_words(),
            mode,
            nonce: identity.region_nonce,
            chunks_backed: AtomicU64::new(0),
            durable_backed: AtomicU64::new(0),
            durable_open: AtomicU64::new(0),
            answers,
        };
        region.set_chunks_backed(geometry.chunks_backed);
        region.set_durable_backed(geometry.durable_backed);
        // Release: pairs with the acquire in `RegionReader::open`, which makes the constants visible.
        header.magic.store(MAGIC, Ordering::Release);
        Ok(region)
    }

    /// The sizes that the region was made with; its backed sizes are the initial ones.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The region's nonce.
    #[must_use]
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// What a full pool does with new records.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The counters.
    #[must_use]
    pub fn control(&self) -> &Control {
        // SAFETY: the control page is inside the mapping (checked in `format`), aligned because the base is, made of
        // atomics, and lives as long as the region by the promise of `format`.
        unsafe { self.base.add(control_offset()).cast::<Control>().as_ref() }
    }

    /// Number of chunks that have memory.
    #[must_use]
    pub fn chunks_backed(&self) -> u32 {
        self.chunks_backed.load(Ordering::Relaxed) as u32
    }

    /// Declares that the first `chunks` chunks have memory. Never shrinks, never exceeds what is mapped.
    pub fn set_chunks_backed(&self, chunks: u32) {
        let chunks = u64::from(chunks).min(self.chunks.mapped() as u64);
        let before = self.chunks_backed.fetch_max(chunks, Ordering::AcqRel);
        if chunks <= before {
            return;
        }
        self.control().backed.chunks.fetch_max(chunks, Ordering::Release);
        for index in before..chunks {
            self.hint_free(index as usize);
        }
    }

    /// Approximate number of chunks that are being written or wait for the reader.
    #[must_use]
    pub fn chunks_in_use(&self) -> u32 {
        let fill = &self.control().fill;
        let used = |word: &AtomicU64| word.load(Ordering::Relaxed).min(self.chunks_backed().into()) as u32;
        used(&fill.writing) + used(&fill.complete)
    }

    /// Address of a chunk, if it is mapped.
    #[must_use]
    pub fn chunk_address(&self, index: u32) -> Option<NonNull<u8>> {
        self.chunks.chunk(index as usize)
    }

    /// Number of mapped chunks.
    #[must_use]
    pub fn chunks_mapped(&self) -> u32 {
        self.chunks.mapped() as u32
    }

    /// The next chunks to map: the first one, and how many. `None` if all are mapped.
    #[must_use]
    pub fn next_chunks(&self) -> Option<(u32, u32)> {
        self.chunks.next_piece().map(|(first, count)| (first as u32, count as u32))
    }

    /// Adds the [next chunks](Self::next_chunks) without declaring that they have memory. One caller at a time, outside
    /// handlers.
    ///
    /// # Safety
    /// That part of the region's file must be mapped at `base`, readable, writable and shared, and must stay so.
    pub unsafe fn add_chunks(&self, base: NonNull<u8>) {
        // SAFETY: the caller's promise is what `ChunkSpace::add` requires.
        unsafe { self.chunks.add(base) };
    }

    /// Visits what is mapped of the region, by addresses and bytes: up to the end of the first chunks, the answers, and
    /// whatever chunks were [added](Self::add_chunks).
    pub fn visit_parts(&self, mut visit: impl FnMut(NonNull<u8>, usize)) {
        visit(self.base, self.chunks.end_of_first() - self.base.addr().get());
        if let Some(answers) = self.answers {
            visit(answers, ANSWERS_LEN);
        }
        self.chunks.visit_pieces(visit);
    }

    /// Allows the reader to give memory to mapped chunks.
    pub fn invite_offers(&self) {
        self.control().backed.mapped.store(self.chunks.mapped() as u64, Ordering::Release);
    }

    /// Number of recordings that have begun after the first one.
    #[must_use]
    #[inline]
    pub fn recordings(&self) -> u64 {
        self.control().backed.recordings.load(Ordering::Relaxed)
    }

    /// Makes requests be answered in memory that is mapped separately.
    ///
    /// # Safety
    /// The [`ANSWERS_LEN`] bytes of the region's file after the last chunk must be mapped at `base`, readable, writable
    /// and shared, and must stay so.
    pub unsafe fn answer_in(&mut self, base: NonNull<u8>) {
        self.answers = Some(base);
    }

    /// Bytes of the durable log that have memory.
    #[must_use]
    pub fn durable_backed(&self) -> u64 {
        self.durable_backed.load(Ordering::Relaxed)
    }

    /// Declares that the first `bytes` of the durable log have memory. Never shrinks, never exceeds the capacity.
    pub fn set_durable_backed(&self, bytes: u64) {
        let bytes = bytes.min(self.geometry.durable_capacity);
        self.durable_backed.fetch_max(bytes, Ordering::Release);
        self.control().backed.durable.fetch_max(bytes, Ordering::Release);
    }

    /// Lets handlers give memory to the durable log.
    pub fn open_durable(&self) {
        self.durable_open.store(self.geometry.durable_capacity, Ordering::Release);
    }

    /// Bytes of the durable log to which handlers may give memory.
    #[must_use]
    pub fn durable_open(&self) -> u64 {
        self.durable_open.load(Ordering::Acquire)
    }

    /// The bytes of the durable log from `start` to `end`: where they are, and how many.
    #[must_use]
    pub fn durable_part(&self, start: u64, end: u64) -> (*mut u8, usize) {
        let end = end.min(self.geometry.durable_capacity);
        let offset = self.geometry.durable_offset() + start.min(end) as usize;
        // SAFETY: inside the mapping, to which the whole log belongs (`format`).
        (unsafe { self.base.add(offset) }.as_ptr(), end.saturating_sub(start) as usize)
    }

    /// Bytes of the durable log in use.
    #[must_use]
    pub fn durable_used(&self) -> u64 {
        self.log().used()
    }

    /// Largest payload that [`ThreadCursor::reserve`](crate::ThreadCursor::reserve) accepts, in 64-bit words.
    #[must_use]
    pub fn max_payload_words(&self) -> usize {
        self.geometry.chunk_words() - 2
    }

    /// Appends a durable record whose payload is the concatenation of the parts.
    pub(crate) fn append_durable(&self, kind: DurableKind, parts: &[&[u8]]) -> Result<(), Loss> {
        self.log().append(kind as u16, parts)
    }

    /// Appends a durable record. Any thread, outside handlers.
    ///
    /// On [`Loss::DurableFull`] back more of the log and retry, or count the loss. [`Loss::TooLarge`] means more than
    /// [`DURABLE_RECORD_MAX`](crate::layout::DURABLE_RECORD_MAX) bytes.
    pub fn append(&self, record: &DurableRecord<'_>) -> Result<(), Loss> {
        record.encode(|kind, parts| self.append_durable(kind, parts))
    }

    /// The memory for answers to requests, if there is any.
    pub(crate) fn answers(&self) -> Option<&[AtomicU64]> {
        let base = self.answers?;
        // SAFETY: `format` and `answer_in` made sure of this much page-aligned memory, which is accessed through
        // atomics only and outlives `self`.
        Some(unsafe { core::slice::from_raw_parts(base.cast().as_ptr(), ANSWERS_LEN / 8) })
    }

    fn log(&self) -> Log<'_> {
        let words = (self.durable_backed.load(Ordering::Acquire) / 8) as usize;
        Log {
            reserve: &self.control().durable.reserve,
            words: self.words(self.geometry.durable_offset(), words),
        }
    }

    /// Words of the mapping as atomics. `offset` and `words` must come from the private geometry.
    fn words(&self, offset: usize, words: usize) -> &[AtomicU64] {
        // SAFETY: every caller passes a range of the validated geometry, whose total length was checked against the
        // mapping. Offsets are multiples of 8 from an aligned base. The memory is accessed through atomics only and
        // outlives `self`, as promised to `format`.
        unsafe { core::slice::from_raw_parts(self.base.add(offset).cast().as_ptr(), words) }
    }
}

impl Pool for Region {
    #[inline]
    fn backed(&self) -> usize {
        self.chunks_backed.load(Ordering::Acquire) as usize
    }

    #[inline]
    fn chunk(&self, index: usize) -> Option<Chunk<'_>> {
        let chunk = self.chunks.chunk(index)?;
        // SAFETY: a mapped, page-aligned chunk; header and words are atomics and outlive `self`, as promised to
        // `format` and `add_chunks`.
        unsafe {
            let header = chunk.cast::<ChunkHeader>().as_ref();
            let words =
                core::slice::from_raw_parts(chunk.add(CHUNK_HEADER).cast().as_ptr(), self.chunk_words);
            Some(Chunk { header, words, nonce: self.nonce })
        }
    }

    fn bitmap(&self) -> &[AtomicU64] {
        self.words(self.geometry.bitmap_offset(), self.geometry.bitmap_words())
    }

    fn search(&self) -> &SearchLine {
        &self.control().search
    }

    fn fill(&self) -> &FillLine {
        &self.control().fill
    }

    fn mode(&self) -> Mode {
        self.mode
    }

    fn take_up_offer(&self) -> bool {
        // Acquire: pairs with the release in `RegionReader::offer`: the memory is there. A wild value is clamped to
        // what is mapped.
        let offered = self.control().backed.offered.load(Ordering::Acquire).min(self.chunks.mapped() as u64);
        let before = self.chunks_backed();
        self.set_chunks_backed(offered as u32);
        self.chunks_backed() > before
    }
}
