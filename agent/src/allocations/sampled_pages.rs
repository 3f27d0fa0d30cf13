//! The filter of sampled blocks: a free whose page has none needs no look into the table of live blocks.
//!
//! Each free reads it, in the order of the program's blocks. So what is read is a bit for each page: most of it stays in the
//! caches. What must never happen here: a page whose bit is clear while a sampled block begins in it.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Pages distinguished by the filter of sampled blocks; further pages share their bits.
const PAGES: usize = 1 << 18;
/// Pages of a word.
const IN_WORD: usize = 32;
/// Number of words.
pub(super) const WORDS: usize = PAGES / IN_WORD;

/// `changes:32 | pages:32`: in which pages sampled blocks begin. Setting a bit counts as a change even if
/// it is set already, and a bit is cleared only if nothing has changed since the page had no sampled block.
pub(super) static SAMPLED_PAGES: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
const CHANGE: u64 = 1 << 32;

/// Number of sampled blocks that begin in each page, unless all are looked up. The greatest stays, and so does the bit.
static COUNTS: [AtomicU8; PAGES] = [const { AtomicU8::new(0) }; PAGES];
const MOST: u8 = u8::MAX;

/// The page of a block.
#[derive(Clone, Copy)]
pub(super) struct Page(usize);

impl Page {
    pub(super) fn of(block: u64) -> Self {
        Self((block >> 12) as usize % PAGES)
    }

    fn word(self) -> (&'static AtomicU64, u64) {
        // Without the remainder the compiler would check the bounds.
        (&SAMPLED_PAGES[self.0 / IN_WORD % WORDS], 1 << (self.0 % IN_WORD))
    }

    fn count(self) -> &'static AtomicU8 {
        &COUNTS[self.0 % PAGES]
    }

    /// Counts a sampled block. False if it does not count, because there are too many.
    pub(super) fn add(self) -> bool {
        let more = |count: u8| count.checked_add(1);
        let is_counted = self.count().fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        self.set();
        is_counted
    }

    /// From now on, all blocks of the page are looked up.
    #[inline]
    pub(super) fn look_up_all(self) {
        let (word, bit) = self.word();
        if word.load(Ordering::Relaxed) & bit == 0 {
            self.set();
        }
    }

    fn set(self) {
        let (word, bit) = self.word();
        let changed = |pages: u64| Some(pages.wrapping_add(CHANGE) | bit);
        let _ = word.fetch_update(Ordering::Release, Ordering::Relaxed, changed);
    }

    /// Takes back [`add`](Self::add).
    pub(super) fn remove(self) {
        let less = |count: u8| if count == MOST { None } else { count.checked_sub(1) };
        if self.count().fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) == Ok(1) {
            let (word, bit) = self.word();
            let cleared = |pages: u64| (self.count().load(Ordering::Relaxed) == 0).then_some(pages & !bit);
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Acquire, cleared);
        }
    }
}

/// Forgets all.
pub(super) fn forget() {
    // Memory that is not written stays shared.
    for word in SAMPLED_PAGES.iter().filter(|word| word.load(Ordering::Relaxed) != 0) {
        word.store(0, Ordering::Relaxed);
    }
    for count in COUNTS.iter().filter(|count| count.load(Ordering::Relaxed) != 0) {
        count.store(0, Ordering::Relaxed);
    }
}
