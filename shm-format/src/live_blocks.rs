//! The table of live blocks: the sampled allocations that have not been freed.
//!
//! It is in the region's file, behind the answers, so that it survives its process however that ends. The writer finds a
//! block by its address within a bounded number of entries. A table may have a second part, which gets memory when the first
//! has been used for a quarter: most programs do without it. Threads and signal handlers use the table concurrently and
//! wait-free. What must never happen here: an unbounded loop, or an address or index taken from the shared memory.

mod part;

use core::ptr::NonNull;

use self::part::{ENTERING, Entry, GONE, NEVER, Part, WINDOW};
use crate::atomic::{AtomicU64, Ordering, prefetch};
use crate::layout::PAGE;
use crate::live_table::{LiveTable, TableKind, TableView};

const ENTRY_WORDS: usize = TableKind::Blocks.entry_words();

/// A sampled allocation: the number of its thread in the region, and its number in that thread. If the highest bit is set,
/// one of several [`AlikeAllocations`](crate::AlikeAllocations).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u64);

impl BlockId {
    /// The allocation with this number of a thread; only the low 28 bits are used.
    #[must_use]
    pub const fn new(thread_seq: u32, serial: u64) -> Self {
        Self((thread_seq as u64) << 32 | serial & SERIAL)
    }

    /// Whether it stands for all allocations of a stack and size, in the ids of readers.
    #[must_use]
    pub const fn is_shared(self) -> bool {
        self.0 as u32 >> SERIAL_BITS == 0 && self.0 & SHARED != 0
    }
}

const SERIAL: u64 = (1 << SERIAL_BITS) - 1;
const SERIAL_BITS: u32 = 28;
/// In a serial: the rest is a reader's number for allocations that are not told apart.
const SHARED: u64 = 1 << 27;
/// Sizes below this are exact.
const EXACT: u64 = 1 << 32;
/// Larger ones are in pages.
const IN_PAGES: u64 = 1 << 63;
const SIZE_BITS: u32 = 35;

/// The nonce of an allocation's stack: `in pages:1 | size:35 | serial:28`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationNonce(pub u64);

impl AllocationNonce {
    /// Of a block of this size. Of the serial, the low 27 bits are used.
    #[must_use]
    pub const fn new(size: u64, serial: u64) -> Self {
        let pages = size.div_ceil(PAGE as u64);
        let most = (1 << SIZE_BITS) - 1;
        let size = match size {
            0..EXACT => size << SERIAL_BITS,
            _ => (if pages < most { pages } else { most }) << SERIAL_BITS | IN_PAGES,
        };
        // 0 would be a further allocation.
        let serial = serial & (SHARED - 1);
        Self(size | if serial == 0 { 1 } else { serial })
    }

    /// Of several allocations of this size that a reader has given a number, of which the low 27 bits are used.
    #[must_use]
    pub const fn shared(size: u64, number: u32) -> Self {
        Self(Self::new(size, 0).0 & !SERIAL | SHARED | number as u64 & (SHARED - 1))
    }

    /// That of a further allocation of this size, whose block has the id of an earlier one.
    #[must_use]
    pub const fn further(self) -> Self {
        Self(self.0 & !SERIAL)
    }

    /// Whether its block has the id of an earlier allocation of the same stack and size.
    #[must_use]
    pub const fn is_further(self) -> bool {
        self.0 & SERIAL == 0
    }

    /// The size in bytes, of blocks of 4 GiB and more rounded up to pages.
    #[must_use]
    pub const fn size(self) -> u64 {
        let size = (self.0 & !IN_PAGES) >> SERIAL_BITS;
        if self.0 & IN_PAGES == 0 { size } else { size * PAGE as u64 }
    }

    /// Which allocation of that thread it is.
    #[must_use]
    pub const fn id(self, thread_seq: u32) -> BlockId {
        BlockId::new(thread_seq, self.0)
    }
}

/// The writer's side of a table.
#[derive(Debug)]
pub struct LiveBlocks {
    table: LiveTable<Entry>,
    /// Entries of the first part.
    first: usize,
    /// Entries of the second part.
    rest: usize,
    /// Entries of the first part that have ever been used.
    taken: AtomicU64,
    /// Whether the second part has memory: [`NONE`](Self::NONE), [`BACKED`](Self::BACKED) or [`REFUSED`](Self::REFUSED).
    second: AtomicU64,
}

impl LiveBlocks {
    /// Entries of the first part of a table with two.
    pub const FIRST: usize = 1 << 16;
    /// Most entries of a part.
    pub const PART_MOST: usize = 1 << 20;

    const NONE: u64 = 0;
    const BACKED: u64 = 1;
    const REFUSED: u64 = 2;

    /// Bytes of a table whose parts have this many entries.
    #[must_use]
    pub const fn len_for(first: usize, second: usize) -> usize {
        LiveTable::<Entry>::len_for(first + second)
    }

    /// Makes a table whose parts have this many entries: powers of two; the second may be 0.
    ///
    /// # Safety
    /// `base` is the start of [`len_for`](Self::len_for) zeroed bytes, aligned to a page, that stay mapped. Those for the first
    /// part are backed.
    #[must_use]
    pub unsafe fn format(base: NonNull<u8>, first: usize, second: usize) -> Self {
        debug_assert!(first.is_power_of_two() && (second == 0 || second.is_power_of_two()));
        // SAFETY: the caller promises the memory, and an entry consists of atomic words.
        let table = unsafe { LiveTable::format(base, first + second, TableKind::Blocks) };
        table.use_entries(first);
        Self { table, first, rest: second, taken: AtomicU64::new(0), second: AtomicU64::new(Self::NONE) }
    }

    /// Whether the second part had better get memory: see [`second_part`](Self::second_part).
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= self.first as u64 / 4 && self.can_grow()
    }

    /// Whether there is a second part that has no memory yet.
    #[must_use]
    pub fn can_grow(&self) -> bool {
        self.second.load(Ordering::Relaxed) == Self::NONE && self.rest > 0
    }

    /// Where the table is, and its size in bytes.
    #[must_use]
    pub fn memory(&self) -> (NonNull<u8>, usize) {
        self.table.memory()
    }

    /// The memory of the second part in the table: offset and length in bytes, whole pages.
    #[must_use]
    pub fn second_part(&self) -> (usize, usize) {
        let start = LiveTable::<Entry>::len_for(self.first);
        (start, LiveTable::<Entry>::len_for(self.table.capacity()) - start)
    }

    /// Begins to use the second part, which is backed now, or gives it up.
    pub fn set_second(&self, is_backed: bool) {
        if is_backed {
            self.table.use_entries(self.table.capacity());
        }
        let state = if is_backed { Self::BACKED } else { Self::REFUSED };
        // Release: whoever uses it finds it backed. The first of several threads decides.
        let _ = self.second.compare_exchange(Self::NONE, state, Ordering::Release, Ordering::Relaxed);
    }

    /// The part in which blocks are entered.
    #[inline]
    fn newest(&self) -> Part<'_> {
        // Acquire: pairs with the release in `set_second`.
        let is_backed = self.second.load(Ordering::Acquire) == Self::BACKED;
        self.part(if is_backed { self.first } else { 0 }, if is_backed { self.rest } else { self.first })
    }

    /// The part with `count` entries from number `start` on: the first or the second one.
    #[inline]
    fn part(&self, start: usize, count: usize) -> Part<'_> {
        Part { entries: self.table.entries(), start, mask: count.wrapping_sub(1) }
    }

    /// The entry with the address of the block, freed or not, otherwise the one to use for it; and what that holds in place of
    /// an address. `None` if there is no room.
    #[inline]
    fn find<'t>(&'t self, block: &Expected<'t>) -> Option<(&'t Entry, u64)> {
        // Mostly the nearest one: allocators give out the same addresses again and again.
        match block.nearest.map(|entry| (entry, entry.now())) {
            Some((entry, found)) if found & !GONE == block.address => Some((entry, found)),
            _ => self.find_further(block.address),
        }
    }

    /// The same, beyond the nearest entry. A freed entry of the older part is not used again where the other has room, so that
    /// in the end most blocks are found with one look.
    #[inline(never)]
    fn find_further(&self, address: u64) -> Option<(&Entry, u64)> {
        let part = self.newest();
        let newer = part.find(address);
        match newer {
            Some((_, found)) if found & !GONE == address => newer,
            _ if part.start == 0 => newer,
            _ => match self.part(0, self.first).find(address) {
                Some((entry, found)) if found == address => Some((entry, found)),
                older => newer.or(older),
            },
        }
    }

    /// The entry of the block at `address`, if it has not been freed.
    #[inline]
    fn find_live(&self, address: u64) -> Option<&Entry> {
        match self.newest().nearest(address) {
            Some(entry) if entry.now() == address => Some(entry),
            _ => self.find_live_further(address),
        }
    }

    #[inline(never)]
    fn find_live_further(&self, address: u64) -> Option<&Entry> {
        let (entry, found) = self.find_further(address)?;
        (found == address).then_some(entry)
    }

    /// Prefetches what the insertion of the block at `address` will read, an even number that only the caller knows so far.
    #[inline]
    pub fn expect(&self, address: u64) -> Expected<'_> {
        let nearest = self.newest().nearest(address);
        if let Some(entry) = nearest {
            prefetch(&entry.address);
        }
        Expected { address, nearest }
    }

    /// Inserts a block. Replaces one with the same address whose end was missed.
    #[inline]
    pub fn insert(&self, block: &Expected<'_>, id: BlockId) -> Inserted {
        let address = block.address;
        for _ in 0..WINDOW {
            let Some((entry, before)) = self.find(block) else { break };
            if before == address {
                entry.id.store(id.0, Ordering::Relaxed);
                return Inserted::Replaced;
            }
            // Fails if another block takes the entry.
            if entry.address.compare_exchange(before, ENTERING, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                entry.id.store(id.0, Ordering::Relaxed);
                // Whoever sees the address sees its id.
                entry.address.store(address, Ordering::Release);
                if before == NEVER {
                    self.taken.fetch_add(1, Ordering::Relaxed);
                }
                return Inserted::New;
            }
        }
        self.table.miss();
        Inserted::NoRoom
    }

    /// Marks the block at `address` as freed, if it is in the table.
    #[inline]
    pub fn remove(&self, address: u64) -> Option<BlockId> {
        // free(NULL) is usual, and no block has an address that marks entries.
        if address <= ENTERING {
            return None;
        }
        let entry = self.find_live(address)?;
        let id = entry.id.load(Ordering::Relaxed);
        entry.address.store(address | GONE, Ordering::Release);
        Some(BlockId(id))
    }
}

/// A block that is about to be inserted.
#[derive(Debug)]
pub struct Expected<'t> {
    address: u64,
    nearest: Option<&'t Entry>,
}

/// The outcome of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The block was inserted.
    New,
    /// The block replaced one with the same address.
    Replaced,
    /// All of its entries are in use: the block is not in the table.
    NoRoom,
}

/// A reader's view of a table.
#[derive(Clone, Copy, Debug)]
pub struct BlocksView<'a> {
    /// Blocks that found no free entry.
    pub untracked: u64,
    entries: &'a [[AtomicU64; ENTRY_WORDS]],
}

impl<'a> BlocksView<'a> {
    /// Finds the table in the memory behind the answers of a region; `None` if there is none.
    #[must_use]
    pub fn find(tables: &'a [AtomicU64]) -> Option<Self> {
        TableView::find(tables, TableKind::Blocks)
            .map(|TableView { untracked, entries }| Self { untracked, entries })
    }

    /// The blocks that have not been freed.
    pub fn ids(self) -> impl Iterator<Item = BlockId> + 'a {
        self.entries.iter().filter_map(|[address, id]| {
            // Acquire: whoever sees the address sees its id.
            let address = address.load(Ordering::Acquire);
            (address > ENTERING && address & GONE == 0).then(|| BlockId(id.load(Ordering::Relaxed)))
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use crate::live_table::with_memory;

    fn with_table(capacity: usize, body: impl FnOnce(&LiveBlocks, &[AtomicU64])) {
        with_parts(capacity, 0, body);
    }

    fn with_parts(first: usize, second: usize, body: impl FnOnce(&LiveBlocks, &[AtomicU64])) {
        with_memory(LiveBlocks::len_for(first, second), |base, words| {
            // SAFETY: zeroed, aligned, long enough, and alive until the end of this function.
            body(&unsafe { LiveBlocks::format(base, first, second) }, words);
        });
    }

    #[test]
    fn what_was_entered_and_not_removed_is_told() {
        with_table(256, |table, words| {
            for block in 1..=100u64 {
                assert_eq!(table.insert(&table.expect(block << 20), BlockId::new(1, block)), Inserted::New);
            }
            for block in 1..=50u64 {
                assert_eq!(table.remove(block << 20), Some(BlockId::new(1, block)));
                assert_eq!(table.remove(block << 20), None);
            }
            assert_eq!(table.insert(&table.expect(60 << 20), BlockId::new(2, 7)), Inserted::Replaced);
            let view = BlocksView::find(words).unwrap();
            let mut ids: Vec<_> = view.ids().collect();
            ids.sort();
            let mut expected: Vec<_> =
                (51..=100).filter(|block| *block != 60).map(|block| BlockId::new(1, block)).collect();
            expected.push(BlockId::new(2, 7));
            assert_eq!((ids, view.untracked), (expected, 0));
        });
    }

    /// Allocators give the same addresses out again and again.
    #[test]
    fn an_address_keeps_its_place_while_there_is_room() {
        with_table(64, |table, words| {
            for round in 0..1000u64 {
                for block in 1..=20u64 {
                    assert_eq!(
                        table.insert(&table.expect(block << 12), BlockId(round << 8 | block)),
                        Inserted::New
                    );
                }
                for block in 1..=20u64 {
                    assert_eq!(table.remove(block << 12), Some(BlockId(round << 8 | block)));
                }
            }
            let taken =
                table.table.entries().iter().filter(|entry| entry.address.load(Ordering::Relaxed) != NEVER);
            assert_eq!(taken.count(), 20);
            // Other addresses may have them.
            for block in 100..10_000u64 {
                assert_eq!(table.insert(&table.expect(block << 4), BlockId(block)), Inserted::New, "{block}");
                assert_eq!(table.remove(block << 4), Some(BlockId(block)));
            }
            assert_eq!(BlocksView::find(words).unwrap().ids().count(), 0);
        });
    }

    #[test]
    fn a_full_table_says_how_many_it_does_not_tell_of() {
        with_table(64, |table, words| {
            let blocks = (1..=200u64).map(|block| table.insert(&table.expect(block << 4), BlockId(block)));
            let kept = blocks.filter(|inserted| *inserted == Inserted::New).count();
            let view = BlocksView::find(words).unwrap();
            assert_eq!((view.ids().count(), view.untracked), (kept, 200 - kept as u64));
            assert!(kept <= 64);
        });
    }

    /// Blocks of before are found again, and their addresses reused.
    #[test]
    fn a_second_part_takes_what_the_first_does_not() {
        with_parts(256, 4096, |table, words| {
            let insert = |block: u64| table.insert(&table.expect(block << 4), BlockId(block));
            let blocks = 1..=3000u64;
            let crowded = blocks.clone().find(|block| {
                assert_eq!(insert(*block), Inserted::New, "{block}");
                table.is_crowded()
            });
            assert_eq!(crowded, Some(64));
            assert_eq!(table.second_part(), (2 * PAGE, 16 * PAGE));
            assert!(words[2 * PAGE / 8..].iter().all(|word| word.load(Ordering::Relaxed) == 0));
            table.set_second(true);
            table.set_second(false);
            assert!(!table.is_crowded());
            (65..=3000).for_each(|block| assert_eq!(insert(block), Inserted::New, "{block}"));
            assert_eq!(insert(5), Inserted::Replaced);
            for block in (1..=3000).step_by(2) {
                assert_eq!(table.remove(block << 4), Some(BlockId(block)));
            }
            (1..=100).for_each(|block| assert_eq!(table.remove(block << 4).is_some(), block % 2 == 0));
            let left: Vec<_> = BlocksView::find(words).unwrap().ids().map(|id| id.0).collect();
            assert_eq!(left.len(), 1450);
            assert!(left.iter().all(|block| *block > 100 && block % 2 == 0));
        });
    }

    #[test]
    fn without_a_second_part_the_first_is_filled() {
        with_parts(64, 4096, |table, words| {
            (1..=32u64).for_each(|block| {
                assert_eq!(table.insert(&table.expect(block << 4), BlockId(block)), Inserted::New)
            });
            assert!(table.is_crowded());
            table.set_second(false);
            assert!(!table.is_crowded());
            let kept = (33..=200u64)
                .filter(|block| table.insert(&table.expect(block << 4), BlockId(*block)) == Inserted::New);
            let kept = kept.count();
            let view = BlocksView::find(words).unwrap();
            assert_eq!((view.ids().count(), view.untracked), (32 + kept, 168 - kept as u64));
        });
    }

    /// However blocks lie in the heap: next to each other, or one per page.
    #[test]
    fn three_quarters_of_a_table_are_filled() {
        const ENTRIES: usize = 1 << 14;
        for distance in [16, 32, 48, 80, 1024, 4096, 1 << 20] {
            with_table(ENTRIES, |table, words| {
                let address = |block: u64| 0x5555_5555_0010 + block * distance;
                let blocks = 0..ENTRIES as u64 * 3 / 4;
                for block in blocks.clone() {
                    table.insert(&table.expect(address(block)), BlockId(block));
                }
                let view = BlocksView::find(words).unwrap();
                assert!(view.untracked <= ENTRIES as u64 / 1000, "{distance}: {}", view.untracked);
                let kept = blocks.filter(|block| table.remove(address(*block)) == Some(BlockId(*block)));
                assert_eq!(kept.count() as u64 + view.untracked, ENTRIES as u64 * 3 / 4, "{distance}");
            });
        }
    }

    /// free(NULL) is usual.
    #[test]
    fn no_block_is_at_an_address_that_marks_entries() {
        with_table(64, |table, words| {
            for marker in [NEVER, ENTERING] {
                assert_eq!(table.remove(marker), None);
            }
            assert!(words[PAGE / 8..].iter().all(|word| word.load(Ordering::Relaxed) == 0));
        });
    }

    #[test]
    fn what_is_no_table_is_none() {
        assert!(BlocksView::find(&[]).is_none());
        with_memory(2 * PAGE, |_, words| assert!(BlocksView::find(words).is_none()));
        with_table(64, |_, words| {
            assert!(BlocksView::find(&words[..words.len() - 1]).is_some(), "the last page is not full");
            assert!(BlocksView::find(&words[..PAGE / 8 + 127]).is_none());
            for capacity in
                [65 + (PAGE as u64 - 1024) / 16, TableKind::Blocks.capacity_most() as u64 + 1, u64::MAX]
            {
                words[1].store(capacity, Ordering::Relaxed);
                assert!(BlocksView::find(words).is_none(), "{capacity}");
            }
        });
    }

    #[test]
    fn a_nonce_says_size_and_number() {
        for size in [0, 1, 4096, EXACT - 1, EXACT, EXACT + 1, 1 << 40] {
            let nonce = AllocationNonce::new(size, 77 | 1 << 30);
            let rounded = if size < EXACT { size } else { size.next_multiple_of(PAGE as u64) };
            assert_eq!((nonce.size(), nonce.id(3)), (rounded, BlockId::new(3, 77)));
            assert!(!AllocationNonce::new(size, 1 << 27).is_further());
            let shared = AllocationNonce::shared(size, 77);
            assert_eq!((shared.size(), shared.id(3)), (rounded, BlockId::new(3, 77 | SHARED)));
            assert!(shared.id(3).is_shared() && !nonce.id(3).is_shared());
            assert_eq!((shared.further().size(), shared.further().is_further()), (rounded, true));
        }
    }
}
