//! What the tables behind a region share: a header on a page of its own, followed by entries of one size.
//!
//! What must never happen here: the writer using a capacity or an address that it read from the table.

use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::atomic::{AtomicU64, Ordering};
use crate::layout::PAGE;

/// The header.
#[repr(C)]
struct Head {
    magic: AtomicU64,
    capacity: AtomicU64,
    untracked: AtomicU64,
}

const _: () = assert!(size_of::<Head>() == 24);

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
        PAGE + capacity * size_of::<E>()
    }

    /// Initializes a table with `capacity` entries.
    ///
    /// # Safety
    /// `base` must point to [`len_for`](Self::len_for) zeroed, page-aligned bytes that stay mapped and backed. `E` must
    /// consist of atomic words, for which any bytes are valid.
    pub(crate) unsafe fn format(base: NonNull<u8>, capacity: usize, magic: u64) -> Self {
        let table = Self { base, capacity, entries: PhantomData };
        let head = table.head();
        head.capacity.store(capacity as u64, Ordering::Relaxed);
        // Pairs with no acquire: readers copy the file.
        head.magic.store(magic, Ordering::Release);
        table
    }

    fn head(&self) -> &Head {
        // SAFETY: the caller of `format` promised a mapped, aligned header.
        unsafe { self.base.cast::<Head>().as_ref() }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn entries(&self) -> &[E] {
        // SAFETY: the caller of `format` promised this many entries of atomics.
        unsafe { core::slice::from_raw_parts(self.base.add(PAGE).cast::<E>().as_ptr(), self.capacity) }
    }

    /// Counts something that is missing from the table.
    pub(crate) fn miss(&self) {
        self.head().untracked.fetch_add(1, Ordering::Relaxed);
    }
}

/// A parsed copy of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableView<'a, const ENTRY: usize> {
    pub(crate) untracked: u64,
    pub(crate) entries: &'a [[u8; ENTRY]],
}

impl<'a, const ENTRY: usize> TableView<'a, ENTRY> {
    /// Parses a table at the beginning of `bytes`; `None` if there is none.
    pub(crate) fn parse(bytes: &'a [u8], magic: u64) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let capacity = usize::try_from(word(8)?).ok()?;
        let entries = bytes.get(PAGE..)?.get(..capacity.checked_mul(ENTRY)?)?;
        (word(0)? == magic).then_some(Self { untracked: word(16)?, entries: entries.as_chunks().0 })
    }
}

/// Calls `body` with zeroed, page-aligned memory of `len` bytes, and a function that copies it.
#[cfg(all(test, not(loom)))]
pub(crate) fn with_memory(len: usize, body: impl FnOnce(NonNull<u8>, &dyn Fn() -> std::vec::Vec<u8>)) {
    #[repr(align(4096))]
    #[derive(Clone)]
    struct Page(#[expect(dead_code, reason = "it is there for its size")] [u8; PAGE]);
    let mut memory = std::vec![Page([0; PAGE]); len.div_ceil(PAGE)];
    let base = NonNull::new(memory.as_mut_ptr().cast::<u8>()).unwrap();
    body(base, &|| {
        // SAFETY: the bytes are initialized and alive, and no other thread uses them.
        unsafe { core::slice::from_raw_parts(base.as_ptr(), len) }.to_vec()
    });
}
