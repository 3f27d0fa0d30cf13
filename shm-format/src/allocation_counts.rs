//! The table of allocation counts: if all allocations are recorded, how often a known stack has allocated a size.
//!
//! Nearly all allocations of a program come from a few thousand stacks, each of a few sizes. A count costs less than a
//! record, to the program and to the reader, who takes differences. (In a flight recorder each allocation has a record besides,
//! which is overwritten in its turn.) The table is in the region's file, behind the answers, so that it survives its process
//! however that ends. A stack belongs to one thread, so only that thread changes the entry. Few programs need more than the first
//! entries, so the others get memory when they are needed. What must never happen here: an index taken from the shared memory,
//! a count in an entry of others, or an entry without memory.

use core::ptr::NonNull;

use crate::alike_allocations::AlikeAllocations;
use crate::atomic::{AtomicU64, Ordering, local_add};
use crate::live_table::{LiveTable, TableKind, TableView};

/// An entry of the table.
#[derive(Debug)]
#[repr(C)]
struct Entry {
    /// The word of the allocations; 0 for none.
    alike: AtomicU64,
    count: AtomicU64,
}

const ENTRY_WORDS: usize = TableKind::Counts.entry_words();

/// The writer's side of a table.
#[derive(Debug)]
pub struct AllocationCounts {
    table: LiveTable<Entry>,
    /// Number of entries that have been taken, or would have been.
    taken: AtomicU64,
    /// Number of entries that have memory.
    backed: AtomicU64,
}

impl AllocationCounts {
    /// Bytes of an entry.
    pub const ENTRY: usize = size_of::<Entry>();
    /// Most entries of a table.
    pub const CAPACITY_MOST: usize = TableKind::Counts.capacity_most();
    /// Number of entries that have memory from the start.
    pub const FIRST: usize = 1 << 14;
    /// Number of entries that get memory at once. Together they fill pages.
    pub const STEP: usize = 1 << 12;

    /// Bytes of a table of so many entries.
    #[must_use]
    pub const fn len_for(entries: usize) -> usize {
        LiveTable::<Entry>::len_for(entries)
    }

    /// Makes a table of so many entries: at least [`FIRST`](Self::FIRST), at most [`CAPACITY_MOST`](Self::CAPACITY_MOST), and a
    /// multiple of [`STEP`](Self::STEP).
    ///
    /// # Safety
    /// `base` is the start of as many zeroed bytes as these [need](Self::len_for), aligned to a page, that stay mapped. The first
    /// bytes have memory: as many as [`FIRST`](Self::FIRST) entries need.
    #[must_use]
    pub unsafe fn format(base: NonNull<u8>, entries: usize) -> Self {
        // SAFETY: the caller promises the memory, and an entry consists of atomic words.
        let table = unsafe { LiveTable::format(base, entries, TableKind::Counts) };
        Self { table, taken: AtomicU64::new(0), backed: AtomicU64::new(Self::FIRST as u64) }
    }

    /// The next entries that need memory, if there are any: where they are, their size in bytes, and how many entries have memory
    /// once they have. Several threads may give it to them at a time.
    #[must_use]
    pub fn without_memory(&self) -> Option<(NonNull<u8>, usize, usize)> {
        let backed = self.backed.load(Ordering::Relaxed) as usize;
        let entries = self.table.entries().get(backed..)?;
        let entries = entries.get(..Self::STEP.min(entries.len())).filter(|entries| !entries.is_empty())?;
        Some((NonNull::from(entries).cast(), size_of_val(entries), backed + entries.len()))
    }

    /// Declares that the first `entries` have memory.
    pub fn set_backed(&self, entries: usize) {
        self.backed.fetch_max(entries.min(self.table.capacity()) as u64, Ordering::Relaxed);
    }

    /// Number of entries that have memory.
    #[must_use]
    pub fn backed(&self) -> usize {
        self.backed.load(Ordering::Relaxed) as usize
    }

    /// Where the table is, and its size in bytes.
    #[must_use]
    pub fn memory(&self) -> (NonNull<u8>, usize) {
        self.table.memory()
    }

    /// Counts an allocation in the entry at `index`, if that is an entry of `alike`.
    ///
    /// Only the thread to which the stack belongs may call this.
    #[inline(always)]
    pub fn count(&self, index: u32, alike: AlikeAllocations) -> bool {
        let Some(entry) = self.table.entries().get(index as usize) else { return false };
        let is_own = entry.alike.load(Ordering::Relaxed) == alike.word();
        if is_own {
            local_add(&entry.count, 1);
        }
        is_own
    }

    /// Takes an entry for `alike` and counts an allocation there. Returns its index; `None` if all that have memory are taken.
    pub fn take(&self, alike: AlikeAllocations) -> Option<u32> {
        // The number of entries is checked first, so that the counter never wraps around.
        let backed = self.backed.load(Ordering::Relaxed);
        let is_full = self.taken.load(Ordering::Relaxed) >= backed;
        let index = if is_full { return None } else { self.taken.fetch_add(1, Ordering::Relaxed) };
        let entry = self.table.entries().get(index as usize).filter(|_| index < backed)?;
        entry.count.store(1, Ordering::Relaxed);
        // Release: whoever sees the word sees its first count, and the stack in the log.
        entry.alike.store(alike.word(), Ordering::Release);
        self.table.use_entries(index as usize + 1);
        Some(index as u32)
    }
}

/// A reader's view of a table.
#[derive(Clone, Copy, Debug)]
pub struct CountsView<'a> {
    entries: &'a [[AtomicU64; ENTRY_WORDS]],
}

impl<'a> CountsView<'a> {
    /// Finds the table in the memory behind the answers of a region; `None` if there is none.
    #[must_use]
    pub fn find(tables: &'a [AtomicU64]) -> Option<Self> {
        TableView::find(tables, TableKind::Counts).map(|TableView { entries, .. }| Self { entries })
    }

    /// The index of each entry in use, what it counts, and how many there have been. Several entries may count the same.
    pub fn counts(self) -> impl Iterator<Item = (usize, AlikeAllocations, u64)> + 'a {
        self.entries.iter().enumerate().filter_map(|(index, [alike, count])| {
            // Acquire: the stack is in the log.
            let alike = AlikeAllocations::from_word(alike.load(Ordering::Acquire))?;
            Some((index, alike, count.load(Ordering::Relaxed)))
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use crate::layout::PAGE;
    use crate::live_table::with_memory;

    const CAPACITY: usize = AllocationCounts::FIRST + 3 * AllocationCounts::STEP;

    fn with_table(body: impl FnOnce(&AllocationCounts, &[AtomicU64])) {
        with_memory(AllocationCounts::len_for(CAPACITY), |base, words| {
            // SAFETY: zeroed, aligned, long enough, and alive until the end of this function.
            body(&unsafe { AllocationCounts::format(base, CAPACITY) }, words);
        });
    }

    #[test]
    fn allocations_are_counted_by_stack_and_size() {
        with_table(|table, words| {
            let [one, other] = [64, 128].map(|size| AlikeAllocations::new(0, size, 7));
            let index = table.take(one).unwrap();
            assert!(!table.count(index, other) && !table.count(index + 1, other));
            for _ in 0..9 {
                assert!(table.count(index, one));
            }
            let second = table.take(other).unwrap();
            assert!(!table.count(u32::MAX, one));
            let view = CountsView::find(words).unwrap();
            let counts: Vec<_> = view.counts().collect();
            assert_eq!(counts, [(index as usize, one, 10), (second as usize, other, 1)]);
        });
    }

    #[test]
    fn entries_without_memory_are_not_taken() {
        with_table(|table, words| {
            let alike = |size| AlikeAllocations::new(0, size, 1);
            let mut size = 0;
            while let Some((_, bytes, backed)) = table.without_memory() {
                assert_eq!(bytes, (backed - table.backed()) * 16);
                while size < table.backed() as u32 {
                    assert_eq!(table.take(alike(size)), Some(size));
                    size += 1;
                }
                assert_eq!((table.take(alike(0)), table.take(alike(0))), (None, None));
                table.set_backed(backed);
            }
            assert_eq!(table.backed(), CAPACITY);
            let counts = CountsView::find(words).unwrap().counts();
            assert!(
                counts
                    .map(|(_, alike, count)| (alike.size(), count))
                    .eq((0..size as u64).map(|size| (size, 1)))
            );
        });
    }

    #[test]
    fn what_a_writer_does_not_write_is_left_out() {
        with_table(|table, words| {
            let alike = AlikeAllocations::new(0, 64, 7);
            let index = table.take(alike).unwrap() as usize;
            // More than there are.
            words[3].store(u64::MAX, Ordering::Relaxed);
            let counts = || CountsView::find(words).unwrap().counts().collect::<Vec<_>>();
            assert_eq!(counts(), [(index, alike, 1)]);
            words[PAGE / 8 + 2 * index].store(alike.word() & !(1 << 63), Ordering::Relaxed);
            assert_eq!(counts(), []);
        });
    }
}
