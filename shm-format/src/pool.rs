//! The pool of chunks from the writer's side: finding a free chunk in bounded time, and handing over full ones.

use crate::atomic::{AtomicU64, Ordering};
use crate::chunk::Chunk;
use crate::layout::{FillLine, Mode, SearchLine};
use crate::word::Phase;

/// Bitmap words, or chunks to overwrite, that one search examines.
const PROBES: usize = 64;
/// One in this many chunks is kept free of permanent owners.
const LENT: u64 = 8;

/// A point between two instructions of the write protocol where a signal handler may run.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Loaded,
    Helped,
    Timed,
    Reserved,
    Busy,
    Published,
    Taken,
    Prepared,
    Switched,
    Sealed,
    Done,
    Committed,
}

/// Chunks and the words that manage them. [`Region`](crate::Region) is the pool in shared memory; tests use others.
pub trait Pool {
    /// Number of chunks that may be used now; never more than have memory.
    fn backed(&self) -> usize;
    /// A chunk, if the index is within the mapped address space.
    fn chunk(&self, index: usize) -> Option<Chunk<'_>>;
    /// One bit per chunk: probably free.
    fn bitmap(&self) -> &[AtomicU64];
    /// Where to continue the search for a free chunk.
    fn search(&self) -> &SearchLine;
    /// How full the pool is.
    fn fill(&self) -> &FillLine;
    /// What to do when no chunk is free.
    fn mode(&self) -> Mode;
    /// Starts to use chunks to which the reader has given memory; false if there are none.
    fn take_up_offer(&self) -> bool {
        false
    }
    /// Called between the steps of a write; tests nest other writes here.
    #[doc(hidden)]
    #[inline(always)]
    fn step(&self, _step: Step) {}

    /// Takes a chunk for writing. Returns its index and new generation.
    fn take(&self) -> Option<(u16, u64)> {
        let mut taken = self.take_free();
        if taken.is_none() && self.take_up_offer() {
            taken = self.take_free();
        }
        if taken.is_none() && self.mode() == Mode::Overwrite {
            taken = self.take_complete();
        }
        if taken.is_some() {
            self.fill().writing.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Whether so many chunks have owners that the remaining ones must be shared. A wild value costs space only.
    fn is_scarce(&self) -> bool {
        let backed = self.backed() as u64;
        let lent = backed / LENT;
        lent > 0 && self.fill().writing.load(Ordering::Relaxed) > backed - lent
    }

    /// Whether less than a quarter of the pool is left, judging by hints. A wild value costs wake-ups only.
    fn is_low(&self) -> bool {
        let (backed, fill) = (self.backed() as u64, self.fill());
        let waiting = fill.complete.load(Ordering::Relaxed);
        let used = waiting.saturating_add(fill.writing.load(Ordering::Relaxed));
        used > backed - backed / 4
    }

    /// Searches at most 64 words of the bitmap.
    #[doc(hidden)]
    fn take_free(&self) -> Option<(u16, u64)> {
        let backed = self.backed();
        let words = self.bitmap().get(..backed.div_ceil(64))?;
        let start = self.search().word.load(Ordering::Relaxed) as usize;
        let mut tries = 2 * PROBES;
        for step in 0..words.len().min(PROBES) {
            let at = start.wrapping_add(step).checked_rem(words.len())?;
            let Some(word) = words.get(at) else { continue };
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 && tries > 0 {
                tries -= 1;
                let bit = bits.trailing_zeros();
                bits &= bits - 1;
                let index = at * 64 + bit as usize;
                if index >= backed {
                    break;
                }
                // The bit is only a hint, cleared so that others look elsewhere; the state decides.
                word.fetch_and(!(1 << bit), Ordering::Relaxed);
                let Some(chunk) = self.chunk(index) else { continue };
                let state = chunk.state();
                if state.phase() != Phase::Free {
                    continue;
                }
                if let Some(generation) = chunk.take(state) {
                    self.search().word.store(at as u64, Ordering::Relaxed);
                    return Some((u16::try_from(index).ok()?, generation));
                }
            }
        }
        self.search().word.store(start.wrapping_add(PROBES) as u64, Ordering::Relaxed);
        None
    }

    /// Examines at most 64 chunks in turn for one to overwrite, roughly the oldest complete one.
    #[doc(hidden)]
    fn take_complete(&self) -> Option<(u16, u64)> {
        let backed = self.backed();
        for _ in 0..PROBES.min(backed) {
            let hand = self.search().hand.fetch_add(1, Ordering::Relaxed) as usize;
            let index = hand.checked_rem(backed)?;
            let Some(chunk) = self.chunk(index) else { continue };
            let state = chunk.state();
            if !matches!(state.phase(), Phase::Complete | Phase::Free) {
                continue;
            }
            if let Some(generation) = chunk.take(state) {
                if state.phase() == Phase::Complete {
                    self.fill().complete.fetch_sub(1, Ordering::Relaxed);
                    self.fill().overwritten.fetch_add(1, Ordering::Relaxed);
                }
                return Some((u16::try_from(index).ok()?, generation));
            }
        }
        None
    }

    /// Marks a chunk as probably free.
    fn hint_free(&self, index: usize) {
        if let Some(word) = self.bitmap().get(index / 64) {
            word.fetch_or(1 << (index % 64), Ordering::Relaxed);
        }
    }

    /// Returns a chunk in which nothing was reserved.
    fn give_back(&self, index: u16, generation: u64) {
        if let Some(chunk) = self.chunk(usize::from(index))
            && chunk.give_back(generation)
        {
            self.fill().writing.fetch_sub(1, Ordering::Relaxed);
            self.hint_free(usize::from(index));
        }
    }

    /// Hands a chunk over to the reader. Returns whether to ring the doorbell: this call completed the chunk, and a
    /// quarter of the pool now waits for the reader or less than a quarter is left to writers.
    #[cold]
    #[inline(never)]
    fn complete(&self, chunk: Chunk<'_>, generation: u64) -> bool {
        if !chunk.complete(generation) {
            return false;
        }
        self.fill().writing.fetch_sub(1, Ordering::Relaxed);
        let waiting = self.fill().complete.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        // A wild value reads as "ring": the doorbell is rung at most once per completed chunk.
        waiting >= (self.backed() as u64 / 4).max(1) || self.is_low()
    }
}
