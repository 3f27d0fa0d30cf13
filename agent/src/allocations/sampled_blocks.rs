//! The filter of sampled blocks: hardly any free of another block needs a look into the table of live blocks.
//!
//! Each free reads it, in the order of the program's blocks. So what all of them read is coarse, a bit for a group of 16 KiB, and
//! most of it stays in the caches. Where the bit is set, the group's notes decide: for each page the number of sampled blocks that
//! begin in it, and where the only one begins. Addresses that differ by a multiple of 4 GiB share both.
//!
//! What must never happen here: a bit that is clear, or a note that says no, while a sampled block begins there.

use core::sync::atomic::{AtomicU64, Ordering};

/// Size of a page, as a power of two.
pub(super) const PAGE_SHIFT: usize = 12;
/// Size of a group, as a power of two.
pub(super) const GROUP_SHIFT: usize = PAGE_SHIFT + 2;
/// Pages of a group: their notes are a word.
const IN_GROUP: usize = 1 << (GROUP_SHIFT - PAGE_SHIFT);
const COUNT: usize = 1 << (32 - GROUP_SHIFT);
/// Groups of a word of bits.
const IN_WORD: usize = 32;
const WORDS: usize = COUNT / IN_WORD;

/// `changes:32 | groups:32`: in which groups sampled blocks begin. Setting a bit counts as a change even if it is set already, and
/// a bit is cleared only if nothing has changed since the group had no sampled block.
pub(super) static GROUPS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
const CHANGE: u64 = 1 << 32;

/// The notes of each group, one for each page: `count:8 | place:8`, the number of sampled blocks and the exclusive or of their
/// places. The greatest count stays, and so does the bit.
pub(super) static NOTES: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];
const NOTE_BITS: usize = 16;
/// A count of one.
pub(super) const ONE: u64 = 0x100;
const PLACE: u64 = 0xff;
const MOST: u64 = 0xff;
/// Unit of places, as a power of two: the alignment of nearly all blocks.
pub(super) const PLACE_SHIFT: usize = 4;

/// A sampled block, by what the filter knows of it.
#[derive(Clone, Copy)]
pub(super) struct Sampled(u32);

impl Sampled {
    pub(super) fn at(block: u64) -> Self {
        Self(block as u32)
    }

    fn group(self) -> usize {
        self.0 as usize >> GROUP_SHIFT
    }

    fn word(self) -> (&'static AtomicU64, u64) {
        // Without the remainders the compiler would check the bounds.
        (&GROUPS[self.group() / IN_WORD % WORDS], 1 << (self.group() % IN_WORD))
    }

    /// The notes of the group, and how far up the page's is.
    fn notes(self) -> (&'static AtomicU64, usize) {
        (&NOTES[self.group() % COUNT], (self.0 as usize >> PAGE_SHIFT) % IN_GROUP * NOTE_BITS)
    }

    fn place(self) -> u64 {
        u64::from(self.0 >> PLACE_SHIFT) & PLACE
    }

    /// Notes the block. False if it is not, because there are too many; then all blocks of the page are looked up.
    pub(super) fn add(self) -> bool {
        let (notes, at) = self.notes();
        let more =
            |notes: u64| (count(notes >> at) != MOST).then(|| (notes + (ONE << at)) ^ self.place() << at);
        let is_noted = notes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        self.set();
        is_noted
    }

    /// From now on, all blocks of the page are looked up.
    #[inline]
    pub(super) fn look_up_all(self) {
        let (notes, at) = self.notes();
        if count(notes.load(Ordering::Relaxed) >> at) != MOST {
            // First: whoever sees the note does nothing.
            self.set();
            notes.fetch_or((MOST * ONE) << at, Ordering::Release);
        }
    }

    fn set(self) {
        let (word, bit) = self.word();
        let changed = |groups: u64| Some(groups.wrapping_add(CHANGE) | bit);
        let _ = word.fetch_update(Ordering::Release, Ordering::Relaxed, changed);
    }

    /// Takes back [`add`](Self::add).
    pub(super) fn remove(self) {
        let (notes, at) = self.notes();
        let less = |notes: u64| {
            (!matches!(count(notes >> at), 0 | MOST)).then(|| (notes - (ONE << at)) ^ self.place() << at)
        };
        if notes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok().and_then(less) == Some(0) {
            let (word, bit) = self.word();
            let cleared = |groups: u64| (notes.load(Ordering::Relaxed) == 0).then_some(groups & !bit);
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Acquire, cleared);
        }
    }
}

/// The count of the lowest note.
fn count(notes: u64) -> u64 {
    (notes / ONE) & MOST
}

/// Forgets all.
pub(super) fn forget() {
    // Memory that is not written stays shared.
    for (word, notes) in GROUPS.iter().zip(NOTES.chunks(IN_WORD)) {
        if word.load(Ordering::Relaxed) as u32 != 0 {
            word.store(0, Ordering::Relaxed);
            notes.iter().for_each(|notes| notes.store(0, Ordering::Relaxed));
        }
    }
}
