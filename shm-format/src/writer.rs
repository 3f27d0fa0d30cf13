//! The writer's cursor: where a thread writes in the pool, and how it writes a record.
//!
//! A record is reserved by one same-thread compare-and-swap of a private word, filled in place, and committed. A
//! signal handler of the same thread may do the same between any two instructions. What must never happen here:
//! waiting, allocation, a call that is not in this crate, a loop without a bound, a panic, or a write at a position that
//! depends on a value read from shared memory.
//!
//! ```text
//!   load word -> help the record below -> read clock -> cmpxchg word -> BUSY -> publish -> payload -> DONE -> committed
//! ```
//!
//! - *Unpublished*: between its compare-and-swap and its BUSY header the newest record has no header. Its length is in the
//!   word, and the next record on the thread writes BUSY for it. Only the newest record can be unpublished, and it is
//!   unless `published` equals `word`. There are two words so that a record does not wait for two swaps of one.
//! - The clock is read between load and compare-and-swap: if a nested record got in between, the swap fails and the
//!   clock is read again. So timestamps ascend with positions.
//! - A chunk that is the thread's current one is never recycled, and neither is one that holds a reserved but
//!   uncommitted record: `committed` reaches `sealed` only when all of its records are committed.

use core::marker::PhantomData;
use core::mem::ManuallyDrop;

use crossbeam_utils::CachePadded;

use crate::atomic::{AtomicU64, Ordering, local_add, local_compare_exchange, signal_fence, store_words};
use crate::chunk::Chunk;
use crate::control::Loss;
use crate::pool::{Pool, Step};
use crate::record::RecordKind;
use crate::region::Region;
use crate::tracepoint::Fields;
use crate::word::{RecordHeader, RecordState, Reserve, State, Tagged, tag};

/// Interruptions by nested records after which a record is given up.
pub(crate) const RETRIES: usize = 64;
/// The watermark was crossed, and the reader has not been woken yet.
const WAKE: u64 = 1;
/// The thread must leave the chunk after one record.
const LEAVE: u64 = 2;
/// Words of a record besides its payload: the header, and the full time if it is far from the chunk's.
const OVERHEAD: usize = 2;

/// Where a thread's next record goes. All zeros are a position that no record refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    chunk: u16,
    /// As read from the chunk; decides only how a record is encoded.
    generation: u64,
    /// The record's number within its thread.
    pub(crate) sequence: u64,
}

impl Position {
    pub(crate) const NOWHERE: Self = Self { chunk: 0, generation: 0, sequence: 0 };

    pub(crate) fn is_in_chunk_of(self, other: Self) -> bool {
        (self.chunk, self.generation) == (other.chunk, other.generation)
    }
}

/// One thread's cursor in the pool. It is in the target's private memory, and only its thread and signal handlers on that
/// thread may use it. Two threads at once would mix up records, but touch nothing outside the pool.
pub struct ThreadCursor {
    inner: CachePadded<Inner>,
}

struct Inner {
    /// [`Reserve`]: the only word that says where the next record goes.
    word: AtomicU64,
    /// The value of `word` when the newest record known to have a header was reserved.
    published: AtomicU64,
    /// The full sequence around the last change of chunk; completes the low bits in `word`.
    sequence: AtomicU64,
    /// Records lost since `begin`.
    lost: AtomicU64,
    /// `thread sequence:32 | tid:32`.
    owner: AtomicU64,
    /// What to do after the next commit: [`WAKE`], [`LEAVE`].
    due: AtomicU64,
    /// Events that the owner has counted, and how many of them were taken.
    events: AtomicU64,
    events_taken: AtomicU64,
}

impl Default for ThreadCursor {
    fn default() -> Self {
        Self::new()
    }
}

macro_rules! new_cursor {
    ($($qualifier:tt)*) => {
        /// A cursor without a chunk. [`begin`](Self::begin) must come before the first record.
        #[must_use]
        pub $($qualifier)* fn new() -> Self {
            Self {
                inner: CachePadded::new(Inner {
                    word: AtomicU64::new(Reserve::EMPTY.0),
                    published: AtomicU64::new(Reserve::EMPTY.0),
                    sequence: AtomicU64::new(0),
                    lost: AtomicU64::new(0),
                    owner: AtomicU64::new(0),
                    due: AtomicU64::new(0),
                    events: AtomicU64::new(0),
                    events_taken: AtomicU64::new(0),
                }),
            }
        }
    };
}

impl ThreadCursor {
    #[cfg(not(loom))]
    new_cursor!(const);
    #[cfg(loom)]
    new_cursor!();

    /// Starts a thread's life: forgets any chunk (which then stays with its old owner) and counts from 0 again.
    ///
    /// `tid` and `thread_seq` together name the thread in every chunk it writes; no two threads of a region may have
    /// the same pair. The child of a fork calls this before its first record. No record may be open on this cursor.
    pub fn begin(&self, tid: u32, thread_seq: u32) {
        let inner = &self.inner;
        inner.word.store(Reserve::EMPTY.0, Ordering::Relaxed);
        inner.published.store(Reserve::EMPTY.0, Ordering::Relaxed);
        inner.sequence.store(0, Ordering::Relaxed);
        inner.lost.store(0, Ordering::Relaxed);
        inner.due.store(0, Ordering::Relaxed);
        inner.events.store(0, Ordering::Relaxed);
        inner.events_taken.store(0, Ordering::Relaxed);
        inner.owner.store(u64::from(thread_seq) << 32 | u64::from(tid), Ordering::Relaxed);
    }

    /// Reserves a record of `payload_words` 64-bit words, all of which the caller then writes.
    ///
    /// `now` reads the trace clock; it is called once per try. Fails, and counts the loss for the thread, with
    /// `TooLarge` (more words than [`Region::max_payload_words`]), `PoolFull` or `Retries`. The region's counters are
    /// the caller's, who knows the weight.
    #[inline(always)]
    pub fn reserve<'a, P: Pool>(
        &'a self,
        pool: &'a P,
        kind: RecordKind,
        payload_words: usize,
        now: impl Fn() -> u64,
    ) -> Result<Reservation<'a, P>, Loss> {
        for _ in 0..RETRIES {
            let size = |(): &mut (), _| payload_words;
            if let Some(reservation) =
                self.try_write(pool, kind, &now, &mut (), size, |(), reservation| reservation)?
            {
                return Ok(reservation);
            }
        }
        self.lose(Loss::Retries)
    }

    /// Writes an event without a stack. As [`reserve`](Self::reserve).
    #[inline]
    pub fn write_fields<P: Pool>(
        &self,
        pool: &P,
        fields: &Fields<'_>,
        now: impl Fn() -> u64,
    ) -> Result<Committed, Loss> {
        let mut record = self.reserve(pool, RecordKind::Tracepoint, fields.words(), now)?;
        fields.put(|at, value| record.set(at, value));
        Ok(record.commit())
    }

    /// The same for an event whose fields are all numbers, with `types` above its id.
    #[inline(always)]
    pub fn write_numbers<P: Pool>(
        &self,
        pool: &P,
        number: u64,
        values: &[u64],
        now: impl Fn() -> u64,
    ) -> Result<Committed, Loss> {
        let size = |(): &mut (), _| 1 + values.len();
        // The first attempt alone is inlined: nearly all succeed.
        let reserved =
            self.try_write(pool, RecordKind::Tracepoint, &now, &mut (), size, |(), record| record)?;
        let Some(record) = reserved else { return self.write_numbers_again(pool, number, values, now) };
        Ok(record.commit_numbers(number, values))
    }

    #[cold]
    #[inline(never)]
    fn write_numbers_again<P: Pool>(
        &self,
        pool: &P,
        number: u64,
        values: &[u64],
        now: impl Fn() -> u64,
    ) -> Result<Committed, Loss> {
        let record = self.reserve(pool, RecordKind::Tracepoint, 1 + values.len(), now)?;
        Ok(record.commit_numbers(number, values))
    }

    /// One attempt of [`reserve`](Self::reserve), with a length that depends on the position, and a function for the
    /// reservation. `None`: try again, up to [`RETRIES`] times.
    #[inline(always)]
    pub(crate) fn try_write<'a, P: Pool, S, T>(
        &'a self,
        pool: &'a P,
        kind: RecordKind,
        now: &impl Fn() -> u64,
        state: &mut S,
        size: impl FnOnce(&mut S, Position) -> usize,
        then: impl FnOnce(&mut S, Reservation<'a, P>) -> T,
    ) -> Result<Option<T>, Loss> {
        let word = Reserve(self.inner.word.load(Ordering::Relaxed));
        pool.step(Step::Loaded);
        if let Some(chunk) = pool.chunk(usize::from(word.chunk())) {
            let generation = State(chunk.header.state.load(Ordering::Relaxed)).generation();
            let Some(published) = self.help(chunk, generation, word) else { return Ok(None) };
            pool.step(Step::Helped);
            let sequence = word.sequence(self.inner.sequence.load(Ordering::Relaxed));
            let payload_words = size(state, Position { chunk: word.chunk(), generation, sequence });
            if payload_words > chunk.words.len().saturating_sub(OVERHEAD) {
                return self.lose(Loss::TooLarge);
            }
            let ticks = now();
            pool.step(Step::Timed);
            let delta = ticks.wrapping_sub(chunk.header.ts_base.load(Ordering::Relaxed));
            let wide = delta > u64::from(u32::MAX);
            let words = payload_words + 1 + usize::from(wide);
            let room = chunk.words.get(word.end()..).and_then(|room| room.get(..words));
            if let Some((first, payload)) = room.and_then(<[AtomicU64]>::split_first) {
                let header = RecordHeader::new(
                    RecordState::Busy,
                    words,
                    wide,
                    kind.number(),
                    tag(generation, chunk.nonce),
                    if wide { 0 } else { delta as u32 },
                );
                let next = word.advanced(words);
                if !local_compare_exchange(&self.inner.word, word.0, next.0) {
                    return Ok(None);
                }
                pool.step(Step::Reserved);
                first.store(header.0, Ordering::Relaxed);
                pool.step(Step::Busy);
                // Fails if a nested record was published since, which is a newer one.
                local_compare_exchange(&self.inner.published, published, next.0);
                pool.step(Step::Published);
                let payload = match payload.split_first() {
                    Some((full, payload)) if wide => {
                        full.store(ticks, Ordering::Relaxed);
                        payload
                    }
                    _ => payload,
                };
                let reservation = Reservation {
                    cursor: self,
                    pool,
                    chunk,
                    first,
                    payload,
                    header,
                    words,
                    generation,
                    _not_sent: PhantomData,
                };
                return Ok(Some(then(state, reservation)));
            }
        }
        self.change_chunk(pool, word, now)?;
        Ok(None)
    }

    /// Ends the thread's use of the pool: its chunk goes to the reader. To be called on the thread, with no record
    /// open, before it ends. Says whether the reader should be woken.
    pub fn close<P: Pool>(&self, pool: &P) -> Committed {
        self.leave(pool);
        self.committed(pool)
    }

    /// Leaves the chunk, if there is one.
    fn leave<P: Pool>(&self, pool: &P) {
        for _ in 0..RETRIES {
            let word = Reserve(self.inner.word.load(Ordering::Relaxed));
            let Some(chunk) = pool.chunk(usize::from(word.chunk())) else { break };
            let generation = State(chunk.header.state.load(Ordering::Relaxed)).generation();
            let helped = self.help(chunk, generation, word).is_some();
            let next = word.at_start_of(Reserve::NO_CHUNK);
            if helped && local_compare_exchange(&self.inner.word, word.0, next.0) {
                self.seal(pool, chunk, word);
                break;
            }
        }
    }

    /// Records reserved since `begin`.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        let word = Reserve(self.inner.word.load(Ordering::Relaxed));
        word.sequence(self.inner.sequence.load(Ordering::Relaxed))
    }

    /// Counts an event of the owner, to be [taken](Self::take_events) later. Returns how many there were since `begin`.
    #[inline]
    pub fn count_event(&self) -> u64 {
        local_add(&self.inner.events, 1)
    }

    /// The events counted since `begin`.
    #[inline]
    #[must_use]
    pub fn events(&self) -> u64 {
        self.inner.events.load(Ordering::Relaxed)
    }

    /// Takes the events counted since the last call. Any thread may do so.
    pub fn take_events(&self) -> u64 {
        let events = self.inner.events.load(Ordering::Relaxed);
        let taken = self.inner.events_taken.load(Ordering::Relaxed);
        let exchanged =
            self.inner.events_taken.compare_exchange(taken, events, Ordering::Relaxed, Ordering::Relaxed);
        // Another thread has taken them.
        if exchanged.is_ok() { events.wrapping_sub(taken) } else { 0 }
    }

    /// Records lost since `begin`.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.inner.lost.load(Ordering::Relaxed)
    }

    /// Writes a header for the newest record in `word` if it may have none. Returns the new `published`, or `None` if a nested
    /// record came in between and `word` is no longer the newest.
    ///
    /// An unpublished record belongs to code of this thread that is suspended below us (or was abandoned): until that goes on,
    /// nobody else writes the header, and the chunk, holding an uncommitted record, is not recycled. So a plain store
    /// is right, and it can only replace garbage or the same BUSY.
    #[inline]
    fn help(&self, chunk: Chunk<'_>, generation: u64, word: Reserve) -> Option<u64> {
        // `word` was loaded before.
        signal_fence();
        let published = self.inner.published.load(Ordering::Relaxed);
        if published != word.0 && word.last() > 0 {
            self.publish_newest(chunk, generation, word)?;
        }
        Some(published)
    }

    #[cold]
    fn publish_newest(&self, chunk: Chunk<'_>, generation: u64, word: Reserve) -> Option<()> {
        signal_fence();
        // If the word has changed, `published` was loaded after a nested record and says nothing about this one.
        if self.inner.word.load(Ordering::Relaxed) != word.0 {
            return None;
        }
        let kind = RecordKind::Void.number();
        let busy =
            RecordHeader::new(RecordState::Busy, word.last(), false, kind, tag(generation, chunk.nonce), 0);
        chunk.store(word.end().wrapping_sub(word.last()), busy.0);
        Some(())
    }

    #[cold]
    pub(crate) fn lose<T>(&self, cause: Loss) -> Result<T, Loss> {
        local_add(&self.inner.lost, 1);
        Err(cause)
    }

    /// Moves from the chunk in `word`, full or none, to a new one. After `Ok` the caller must load the word again.
    #[cold]
    fn change_chunk<P: Pool>(&self, pool: &P, word: Reserve, now: &impl Fn() -> u64) -> Result<(), Loss> {
        let full = pool.chunk(usize::from(word.chunk()));
        let Some((index, generation)) = pool.take() else {
            // Pass the full chunk to the reader, or the pool could stay full forever.
            let next = word.at_start_of(Reserve::NO_CHUNK);
            if let Some(full) = full
                && local_compare_exchange(&self.inner.word, word.0, next.0)
            {
                self.seal(pool, full, word);
            }
            return self.lose(Loss::PoolFull);
        };
        pool.step(Step::Taken);
        let sequence = word.sequence(self.inner.sequence.load(Ordering::Relaxed));
        let next = word.at_start_of(index);
        let Some(chunk) = pool.chunk(usize::from(index)) else { return self.lose(Loss::PoolFull) };
        let owner = self.inner.owner.load(Ordering::Relaxed);
        chunk.prepare(generation, owner, now(), sequence, self.inner.lost.load(Ordering::Relaxed));
        pool.step(Step::Prepared);
        if !local_compare_exchange(&self.inner.word, word.0, next.0) {
            pool.give_back(index, generation);
            return Ok(());
        }
        pool.step(Step::Switched);
        self.inner.sequence.store(sequence, Ordering::Relaxed);
        if pool.is_low() {
            self.note(WAKE);
        }
        if pool.is_scarce() {
            self.note(LEAVE);
        }
        if let Some(full) = full {
            self.seal(pool, full, word);
        }
        Ok(())
    }

    /// No more records will be reserved in the chunk that `word` left. The last committer completes it: here, if
    /// all are committed, else in [`Reservation::commit`].
    fn seal<P: Pool>(&self, pool: &P, chunk: Chunk<'_>, word: Reserve) {
        let generation = State(chunk.header.state.load(Ordering::Relaxed)).generation();
        let end = Tagged::new(generation, word.end() as u16).0;
        chunk.header.sealed.store(end, Ordering::Release);
        pool.step(Step::Sealed);
        if chunk.header.committed.load(Ordering::Relaxed) == end && pool.complete(chunk, generation) {
            self.note(WAKE);
        }
    }

    /// Notes what to do after the commit. If a nested record comes in between, that happens late.
    fn note(&self, what: u64) {
        self.inner.due.store(self.inner.due.load(Ordering::Relaxed) | what, Ordering::Relaxed);
    }

    #[inline]
    fn committed<P: Pool>(&self, pool: &P) -> Committed {
        match self.inner.due.load(Ordering::Relaxed) {
            0 => Committed { wake: false },
            due => self.settle(pool, due),
        }
    }

    #[cold]
    fn settle<P: Pool>(&self, pool: &P, due: u64) -> Committed {
        if due & LEAVE != 0 {
            self.leave(pool);
        }
        let due = due | self.inner.due.load(Ordering::Relaxed);
        self.inner.due.store(0, Ordering::Relaxed);
        Committed { wake: due & WAKE != 0 }
    }
}

/// What a commit requires of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Committed {
    /// A quarter of the pool waits for the reader, or less than a quarter is free: ring the doorbell.
    pub wake: bool,
}

impl Committed {
    /// The reader need not know at once.
    pub const UNNOTICED: Self = Self { wake: false };
}

/// A record being written. Dropped without [`commit`](Self::commit) it becomes a void record, which readers skip.
pub struct Reservation<'a, P: Pool = Region> {
    cursor: &'a ThreadCursor,
    pool: &'a P,
    chunk: Chunk<'a>,
    /// Where the header is.
    first: &'a AtomicU64,
    payload: &'a [AtomicU64],
    header: RecordHeader,
    words: usize,
    generation: u64,
    /// A reservation belongs to its thread.
    _not_sent: PhantomData<*mut ()>,
}

impl<P: Pool> Reservation<'_, P> {
    pub(crate) fn words(&self) -> &[AtomicU64] {
        self.payload
    }

    /// Number of payload words.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words().len()
    }

    /// Whether the payload has no words.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets payload word `index`; does nothing outside the payload.
    #[inline]
    pub fn set(&mut self, index: usize, value: u64) {
        if let Some(word) = self.words().get(index) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Copies words into the payload from word `start`; what does not fit is left out.
    #[inline]
    pub fn copy_from(&mut self, start: usize, values: &[u64]) {
        store_words(self.words().get(start..).unwrap_or(&[]), values);
    }

    /// The payload words in place. Another process may change them at any time: write, and never read back.
    #[cfg(not(loom))]
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u64 {
        self.words().as_ptr().cast_mut().cast()
    }

    /// Publishes the record of an event whose fields are these numbers.
    #[inline(always)]
    fn commit_numbers(self, number: u64, values: &[u64]) -> Committed {
        if let Some((first, rest)) = self.payload.split_first() {
            first.store(number, Ordering::Relaxed);
            store_words(rest, values);
        }
        self.commit()
    }

    /// Publishes the record.
    #[inline]
    pub fn commit(self) -> Committed {
        let this = ManuallyDrop::new(self);
        this.finish(this.header)
    }

    #[inline]
    fn finish(&self, header: RecordHeader) -> Committed {
        // Acquired by the reader in `Chunk::record`: the payload is there.
        self.first.store(header.done().0, Ordering::Release);
        self.pool.step(Step::Done);
        let words = self.words as u64;
        let committed = local_add(&self.chunk.header.committed, words);
        self.pool.step(Step::Committed);
        // From here the chunk may already belong to another: only the compare-and-swap in `complete`, which knows
        // the generation, may touch it. A record nested here may find the same, so it may be called twice.
        if self.chunk.header.sealed.load(Ordering::Relaxed) == committed
            && self.pool.complete(self.chunk, self.generation)
        {
            self.cursor.note(WAKE);
        }
        self.cursor.committed(self.pool)
    }
}

impl<P: Pool> Drop for Reservation<'_, P> {
    fn drop(&mut self) {
        let h = self.header;
        let void = RecordHeader::new(
            RecordState::Busy,
            h.words(),
            h.is_wide(),
            RecordKind::Void.number(),
            h.tag(),
            h.delta(),
        );
        let _ = self.finish(void);
    }
}
