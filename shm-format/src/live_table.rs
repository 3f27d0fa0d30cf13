//! What the tables behind a region share: a header on a page of its own, followed by entries of one size. They follow each
//! other.
//!
//! What must never happen here: the writer using a capacity or an address that it read from a table, or a reader
//! going beyond the end of the memory.

use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::atomic::{AtomicU64, Ordering};
use crate::layout::PAGE;

/// Size of a word in bytes.
const WORD: usize = 8;

/// What a table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableKind {
    Blocks,
    Counts,
    Mappings,
}

impl TableKind {
    const ALL: [Self; 3] = [Self::Blocks, Self::Counts, Self::Mappings];

    /// The first word.
    const fn magic(self) -> u64 {
        u64::from_le_bytes(match self {
            Self::Blocks => *b"SWBLOCKS",
            Self::Counts => *b"SWCOUNTS",
            Self::Mappings => *b"SWMAPPED",
        })
    }

    /// Words of an entry.
    pub(crate) const fn entry_words(self) -> usize {
        match self {
            Self::Blocks | Self::Counts => 2,
            Self::Mappings => 3,
        }
    }

    /// Most entries. The kernel allows a process eight times as many mappings (vm.max_map_count).
    pub(crate) const fn capacity_most(self) -> usize {
        match self {
            Self::Blocks => (1 << 16) + (1 << 20),
            Self::Counts => 1 << 21,
            Self::Mappings => 1 << 13,
        }
    }
}

/// The header.
#[repr(C)]
struct Head {
    magic: AtomicU64,
    capacity: AtomicU64,
    untracked: AtomicU64,
    used: AtomicU64,
}

/// Words of the header.
const HEAD_WORDS: usize = 4;

const _: () = assert!(size_of::<Head>() == HEAD_WORDS * WORD);

/// The writer's side of a table.
#[derive(Debug)]
pub(crate) struct LiveTable<E> {
    base: NonNull<u8>,
    capacity: usize,
    entries: PhantomData<E>,
}

// SAFETY: the memory is used through atomics alone.
unsafe impl<E: Sync> Send for LiveTable<E> {}
// SAFETY: the memory is used through atomics alone.
unsafe impl<E: Sync> Sync for LiveTable<E> {}

impl<E> LiveTable<E> {
    /// Size in bytes of a table with `capacity` entries.
    pub(crate) const fn len_for(capacity: usize) -> usize {
        (PAGE + capacity * size_of::<E>()).next_multiple_of(PAGE)
    }

    /// Initializes a table with `capacity` entries.
    ///
    /// # Safety
    /// `base` must point to [`len_for`](Self::len_for) zeroed, page-aligned bytes that stay mapped. The header must be backed,
    /// and an entry before it is used. `E` must consist of atomic words, for which any bytes are valid, as many as `kind` says.
    pub(crate) unsafe fn format(base: NonNull<u8>, capacity: usize, kind: TableKind) -> Self {
        const { assert!(size_of::<E>().is_multiple_of(WORD)) };
        debug_assert!(capacity <= kind.capacity_most() && size_of::<E>() == kind.entry_words() * WORD);
        let table = Self { base, capacity, entries: PhantomData };
        let head = table.head();
        head.capacity.store(capacity as u64, Ordering::Relaxed);
        // Release: whoever reads the magic also sees the capacity.
        head.magic.store(kind.magic(), Ordering::Release);
        table
    }

    fn head(&self) -> &Head {
        // SAFETY: the caller of `format` promised a mapped, aligned header.
        unsafe { self.base.cast::<Head>().as_ref() }
    }

    /// Where it is, and its size in bytes.
    pub(crate) fn memory(&self) -> (NonNull<u8>, usize) {
        (self.base, Self::len_for(self.capacity))
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    #[inline]
    pub(crate) fn entries(&self) -> &[E] {
        // SAFETY: the caller of `format` promised this many entries of atomics.
        unsafe { core::slice::from_raw_parts(self.base.add(PAGE).cast::<E>().as_ptr(), self.capacity) }
    }

    /// Counts something that is missing from the table.
    pub(crate) fn miss(&self) {
        self.head().untracked.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells readers that the first `entries` entries may be in use.
    pub(crate) fn use_entries(&self, entries: usize) {
        self.head().used.fetch_max(entries as u64, Ordering::Release);
    }
}

/// A reader's view of a table whose entries have `WORDS` words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableView<'a, const WORDS: usize> {
    pub(crate) untracked: u64,
    /// Those that may be in use.
    pub(crate) entries: &'a [[AtomicU64; WORDS]],
}

impl<'a, const WORDS: usize> TableView<'a, WORDS> {
    /// Finds a table in the memory behind the answers of a region; `None` if there is none.
    pub(crate) fn find(mut tables: &'a [AtomicU64], kind: TableKind) -> Option<Self> {
        for _ in TableKind::ALL {
            let [magic, capacity, untracked, used] = tables.first_chunk::<HEAD_WORDS>()?;
            let (magic, capacity) = (magic.load(Ordering::Acquire), capacity.load(Ordering::Relaxed));
            let found = TableKind::ALL.into_iter().find(|kind| kind.magic() == magic)?;
            let capacity = usize::try_from(capacity).ok().filter(|it| *it <= found.capacity_most())?;
            let words = capacity * found.entry_words();
            if found == kind {
                let entries: &[_] = tables.get(PAGE / WORD..)?.get(..words)?.as_chunks().0;
                let used =
                    usize::try_from(used.load(Ordering::Acquire)).map_or(capacity, |it| it.min(capacity));
                let untracked = untracked.load(Ordering::Relaxed);
                return Some(Self { untracked, entries: entries.get(..used)? });
            }
            tables = tables.get((PAGE + words * WORD).next_multiple_of(PAGE) / WORD..)?;
        }
        None
    }
}

/// Calls `body` with zeroed, page-aligned memory of `len` bytes, and the same as words.
#[cfg(all(test, not(loom)))]
pub(crate) fn with_memory(len: usize, body: impl FnOnce(NonNull<u8>, &[AtomicU64])) {
    #[repr(align(4096))]
    struct Page([AtomicU64; PAGE / WORD]);
    let memory: std::vec::Vec<Page> =
        (0..len.div_ceil(PAGE)).map(|_| Page([const { AtomicU64::new(0) }; PAGE / WORD])).collect();
    let base = NonNull::from(memory.as_slice()).cast::<u8>();
    // SAFETY: pages of atomic words, alive until the end of this function.
    let words = unsafe { core::slice::from_raw_parts(base.cast().as_ptr(), len / WORD) };
    body(base, words);
    let _ = memory.first().map(|page| page.0.len());
}
