//! The table of live mappings: what a process has mapped and not unmapped yet.
//!
//! It lies in the region's file, after the table of live blocks if there is one, so that it survives the process,
//! however that ends. Part of a mapping may be unmapped: each remaining part has an entry of its own, with the id of
//! the mapping. One thread at a time modifies the table, which the caller must ensure; a concurrent change is counted
//! instead of applied. The reader may copy it at any time. What must never happen here: waiting, or use of an address
//! or index from shared memory.

use core::ops::Range;
use core::ptr::NonNull;

use crate::atomic::{AtomicU64, Ordering};
use crate::layout::PAGE;
use crate::live_blocks::BlockId;
use crate::live_table::{LiveTable, TableKind, TableView};

/// Start address of an empty entry.
const NOTHING: u64 = 0;

/// An entry: one part of a mapping.
#[derive(Debug)]
#[repr(C)]
struct Entry {
    start: AtomicU64,
    end: AtomicU64,
    id: AtomicU64,
}

const ENTRY_WORDS: usize = TableKind::Mappings.entry_words();

/// Kind of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingKind {
    /// Private anonymous memory.
    Anonymous,
    /// Memory shared with forked children.
    Shared,
    /// A file, a device, or a memory descriptor.
    File,
    /// Address space without access rights, not memory yet.
    Reserved,
}

impl MappingKind {
    const ALL: [Self; 4] = [Self::Anonymous, Self::Shared, Self::File, Self::Reserved];
}

const SERIAL_BITS: u32 = 26;
const KIND_BITS: u32 = 2;
/// The bits of serial and kind.
const NUMBER: u64 = (1 << (SERIAL_BITS + KIND_BITS)) - 1;
/// Distinguishes a mapping's number from an allocation's: both identify a block of a thread.
const MAPPED: u64 = 1 << 31;

/// The nonce in the stack record of a mapping: `pages:36 | kind:2 | serial:26`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingNonce(pub u64);

impl MappingNonce {
    /// For a mapping of `bytes` bytes, number `serial` in its process (low 26 bits).
    #[must_use]
    pub const fn new(bytes: u64, kind: MappingKind, serial: u64) -> Self {
        let number = (kind as u64) << SERIAL_BITS | serial & ((1 << SERIAL_BITS) - 1);
        Self(bytes.div_ceil(PAGE as u64) << (SERIAL_BITS + KIND_BITS) | number)
    }

    /// Its size in bytes, a multiple of the page size.
    #[must_use]
    pub const fn size(self) -> u64 {
        (self.0 >> (SERIAL_BITS + KIND_BITS)) * PAGE as u64
    }

    /// Kind of the mapping.
    #[must_use]
    pub const fn kind(self) -> MappingKind {
        MappingKind::ALL[(self.0 >> SERIAL_BITS & 3) as usize]
    }

    /// Id of the mapping, given the thread that made it.
    #[must_use]
    pub const fn id(self, thread_seq: u32) -> BlockId {
        BlockId((thread_seq as u64) << 32 | MAPPED | self.0 & NUMBER)
    }
}

/// Kind of the mapping with this id.
#[must_use]
pub const fn kind_of(id: BlockId) -> MappingKind {
    MappingNonce(id.0).kind()
}

/// The writer's side of the table.
#[derive(Debug)]
pub struct LiveMappings {
    table: LiveTable<Entry>,
    /// Entries from this index on have never been used.
    used: AtomicU64,
    /// 1 while the table is being modified.
    busy: AtomicU64,
}

/// Part of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedPart {
    /// Its address range.
    pub range: Range<u64>,
    /// Id of the mapping.
    pub id: BlockId,
}

impl LiveMappings {
    /// Most entries of a table.
    pub const CAPACITY_MOST: usize = TableKind::Mappings.capacity_most();

    /// Size in bytes of a table with `capacity` entries.
    #[must_use]
    pub const fn len_for(capacity: usize) -> usize {
        LiveTable::<Entry>::len_for(capacity)
    }

    /// Initializes a table with `capacity` entries.
    ///
    /// # Safety
    /// `base` must point to [`len_for`](Self::len_for) zeroed, page-aligned bytes that stay mapped and backed.
    #[must_use]
    pub unsafe fn format(base: NonNull<u8>, capacity: usize) -> Self {
        // SAFETY: the caller promises the memory, and an entry consists of atomic words.
        let table = unsafe { LiveTable::format(base, capacity, TableKind::Mappings) };
        table.use_entries(capacity);
        Self { table, used: AtomicU64::new(0), busy: AtomicU64::new(0) }
    }

    fn used(&self) -> &[Entry] {
        self.table.entries().get(..self.used.load(Ordering::Relaxed) as usize).unwrap_or_default()
    }

    /// Counts a mapping, or part of one, that is missing from the table.
    pub fn miss(&self) {
        self.table.miss();
    }

    /// Inserts a part of a mapping. Removes what the table has there: its unmapping was not seen.
    pub fn insert(&self, range: Range<u64>, id: BlockId) {
        self.alone(|| {
            self.take(&range, &mut |_| ());
            self.enter(range, id);
        });
    }

    /// Removes everything in `range` and passes it to `removed`.
    pub fn remove(&self, range: Range<u64>, removed: &mut dyn FnMut(MappedPart)) {
        self.alone(|| self.take(&range, removed));
    }

    fn alone(&self, change: impl FnOnce()) {
        if self.busy.swap(1, Ordering::Acquire) != 0 {
            return self.miss();
        }
        change();
        self.busy.store(0, Ordering::Release);
    }

    fn enter(&self, range: Range<u64>, id: BlockId) {
        if range.is_empty() || range.start == NOTHING {
            return;
        }
        let is_free = |entry: &&Entry| entry.start.load(Ordering::Relaxed) == NOTHING;
        let used = self.used();
        let entry = used.iter().find(is_free).or_else(|| {
            let next = self.table.entries().get(used.len())?;
            self.used.store(used.len() as u64 + 1, Ordering::Relaxed);
            Some(next)
        });
        let Some(entry) = entry else { return self.miss() };
        entry.id.store(id.0, Ordering::Relaxed);
        entry.end.store(range.end, Ordering::Relaxed);
        // Release: whoever reads the start also sees the rest.
        entry.start.store(range.start, Ordering::Release);
    }

    fn take(&self, range: &Range<u64>, removed: &mut dyn FnMut(MappedPart)) {
        for entry in self.used() {
            let [start, end, id] =
                [&entry.start, &entry.end, &entry.id].map(|word| word.load(Ordering::Relaxed));
            let common = start.max(range.start)..end.min(range.end);
            if start == NOTHING || common.is_empty() {
                continue;
            }
            match (start < common.start, common.end < end) {
                (false, false) => entry.start.store(NOTHING, Ordering::Release),
                (false, true) => entry.start.store(common.end, Ordering::Release),
                (true, is_split) => {
                    entry.end.store(common.start, Ordering::Release);
                    if is_split {
                        self.enter(common.end..end, BlockId(id));
                    }
                }
            }
            removed(MappedPart { range: common, id: BlockId(id) });
        }
    }
}

/// A reader's view of a table.
#[derive(Clone, Copy, Debug)]
pub struct MappingsView<'a> {
    /// Mappings, and parts of them, that are missing from it.
    pub untracked: u64,
    entries: &'a [[AtomicU64; ENTRY_WORDS]],
}

impl<'a> MappingsView<'a> {
    /// Finds the table in the memory behind the answers of a region; `None` if there is none.
    #[must_use]
    pub fn find(tables: &'a [AtomicU64]) -> Option<Self> {
        TableView::find(tables, TableKind::Mappings)
            .map(|TableView { untracked, entries }| Self { untracked, entries })
    }

    /// The live parts: id of the mapping and size in bytes of each part.
    pub fn parts(self) -> impl Iterator<Item = (BlockId, u64)> + 'a {
        self.entries.iter().filter_map(|[start, end, id]| {
            // Acquire: whoever reads the start also sees the rest.
            let start = start.load(Ordering::Acquire);
            let end = end.load(Ordering::Relaxed);
            let id = BlockId(id.load(Ordering::Relaxed));
            (start != NOTHING && start < end).then(|| (id, end - start))
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use crate::live_table::with_memory;

    fn with_table(capacity: usize, body: impl FnOnce(&LiveMappings, &[AtomicU64])) {
        with_memory(LiveMappings::len_for(capacity), |base, words| {
            // SAFETY: the bytes are zeroed, aligned, long enough, and alive until the end of this function.
            body(&unsafe { LiveMappings::format(base, capacity) }, words);
        });
    }

    /// Remaining bytes of each mapping.
    fn left(words: &[AtomicU64]) -> Vec<(u64, u64)> {
        let mut left = std::collections::BTreeMap::new();
        for (id, bytes) in MappingsView::find(words).unwrap().parts() {
            *left.entry(id.0).or_insert(0) += bytes;
        }
        left.into_iter().collect()
    }

    #[test]
    fn parts_are_removed() {
        with_table(64, |table, words| {
            table.insert(0x1000..0x9000, BlockId(1));
            table.insert(0x9000..0xa000, BlockId(2));
            table.insert(0x20000..0x21000, BlockId(3));
            let mut removed = Vec::new();
            // The head of one, the middle of one, and the tail of one together with all of the next.
            table.remove(0x1000..0x2000, &mut |part| removed.push(part));
            table.remove(0x4000..0x5000, &mut |part| removed.push(part));
            table.remove(0x8000..0xb000, &mut |part| removed.push(part));
            assert_eq!(left(words), [(1, 0x5000), (3, 0x1000)]);
            let ranges: Vec<_> = removed.iter().map(|part| (part.range.clone(), part.id.0)).collect();
            assert_eq!(
                ranges,
                [(0x1000..0x2000, 1), (0x4000..0x5000, 1), (0x9000..0xa000, 2), (0x8000..0x9000, 1)]
            );
            // A new mapping replaces what it overlaps.
            table.insert(0x3000..0x6000, BlockId(4));
            assert_eq!(left(words), [(1, 0x3000), (3, 0x1000), (4, 0x3000)]);
            table.remove(0..u64::MAX, &mut |_| ());
            assert_eq!(left(words), []);
        });
    }

    #[test]
    fn a_full_table_counts_what_it_misses() {
        with_table(4, |table, words| {
            (1..=6).for_each(|id| table.insert(id << 20..(id << 20) + 0x3000, BlockId(id)));
            // Splitting needs a free entry, too.
            table.remove((1 << 20) + 0x1000..(1 << 20) + 0x2000, &mut |_| ());
            assert_eq!(left(words), [(1, 0x1000), (2, 0x3000), (3, 0x3000), (4, 0x3000)]);
            assert_eq!(MappingsView::find(words).unwrap().untracked, 3);
            assert!(MappingsView::find(&words[..PAGE / 8 + 2]).is_none());
        });
    }

    #[test]
    fn a_nonce_holds_size_kind_and_serial() {
        for kind in MappingKind::ALL {
            for size in [0, 1, 4096, 4097, 1 << 40, 1 << 47] {
                let nonce = MappingNonce::new(size, kind, 77 | 1 << 26);
                assert_eq!((nonce.size(), nonce.kind()), (size.next_multiple_of(4096), kind));
                assert_eq!(nonce.id(3), MappingNonce::new(0, kind, 77).id(3));
                assert_eq!(kind_of(nonce.id(3)), kind);
                assert_ne!(nonce.id(3), BlockId::new(3, 77));
            }
        }
    }
}
