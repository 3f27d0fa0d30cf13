//! The filter of sampled blocks: a free whose page has none needs no look into the table of live blocks.

use core::sync::atomic::{AtomicU8, Ordering};

/// Pages distinguished by the filter of sampled blocks; further pages share their bytes.
pub(super) const PAGES: usize = 1 << 18;

/// Number of sampled blocks that begin in each page.
pub(super) static SAMPLED_PAGES: [AtomicU8; PAGES] = [const { AtomicU8::new(0) }; PAGES];

/// The byte for the page of a block.
pub(super) fn page(block: u64) -> Option<&'static AtomicU8> {
    SAMPLED_PAGES.get((block >> 12) as usize & (PAGES - 1))
}

/// Forgets all.
pub(super) fn forget() {
    for page in &SAMPLED_PAGES {
        // Pages that are not written stay shared.
        if page.load(Ordering::Relaxed) != 0 {
            page.store(0, Ordering::Relaxed);
        }
    }
}
