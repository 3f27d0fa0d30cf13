//! A part of the table of live blocks, and the entries in which a block may be.

use crate::atomic::{AtomicU64, Ordering};
use crate::layout::PAGE;

/// Number of consecutive entries in which a block may be, from the one that belongs to its place in the heap.
const NEAR: usize = 8;
/// Number of other entries in which it may be, anywhere.
const FAR: usize = 32;
/// Number of all entries in which it may be.
pub(super) const WINDOW: usize = NEAR + FAR;
/// Blocks are aligned to 16 bytes.
const GRAIN: u32 = 4;
/// 2^64 divided by the golden ratio (Fibonacci hashing).
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// In place of an address: the entry was never used.
pub(super) const NEVER: u64 = 0;
/// In place of an address: a block is being inserted.
pub(super) const ENTERING: u64 = 2;
/// Flag beside an address: the block was freed. Allocators reuse addresses, which then keep their entry.
pub(super) const GONE: u64 = 1;

/// An entry of the table.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Entry {
    pub(super) address: AtomicU64,
    pub(super) id: AtomicU64,
}

impl Entry {
    /// What it holds in place of an address now.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.address.load(Ordering::Acquire)
    }
}

/// A part of the table: a power of two of entries.
///
/// A page of the heap has its blocks next to each other, in their order: so the table's lines and pages are as hot as the
/// program's own. Where other pages have filled that place, its blocks are anywhere.
#[derive(Clone, Copy)]
pub(super) struct Part<'t> {
    /// Those of the table.
    pub(super) entries: &'t [Entry],
    /// Number of the part's first one.
    pub(super) start: usize,
    pub(super) mask: usize,
}

impl<'t> Part<'t> {
    #[inline]
    fn entry(self, index: u64) -> Option<&'t Entry> {
        self.entries.get(self.start.wrapping_add(index as usize & self.mask))
    }

    /// The first entry for a block's place in its page; others follow.
    #[inline]
    fn place(address: u64) -> u64 {
        const PLACES: u64 = PAGE as u64 >> GRAIN;
        let place = address >> GRAIN;
        let page = (place / PLACES).wrapping_mul(FACTOR) >> 32;
        // Many pages have only one block, at their beginning.
        page.wrapping_mul(PLACES).wrapping_add(place.wrapping_add(page >> 8) % PLACES)
    }

    /// The first entry in which a block may be.
    #[inline]
    pub(super) fn nearest(self, address: u64) -> Option<&'t Entry> {
        self.entry(Self::place(address))
    }

    /// The entry with this address, freed or not, otherwise the one to use for it, and what that holds.
    pub(super) fn find(self, address: u64) -> Option<(&'t Entry, u64)> {
        let (mut gone, place) = (None, Self::place(address));
        for step in 0..NEAR as u64 {
            if let Some(found) = Self::look(self.entry(place.wrapping_add(step))?, address, &mut gone) {
                return Some(found);
            }
        }
        self.find_far(address, gone)
    }

    /// The same, anywhere. `gone` is the first freed entry near its place.
    #[inline(never)]
    fn find_far(self, address: u64, mut gone: Option<(&'t Entry, u64)>) -> Option<(&'t Entry, u64)> {
        let first = mix(address >> GRAIN);
        let stride = first >> 24 | 1;
        for step in 0..FAR as u64 {
            let entry = self.entry(first.wrapping_add(step.wrapping_mul(stride)))?;
            if let Some(found) = Self::look(entry, address, &mut gone) {
                return Some(found);
            }
        }
        gone
    }

    /// The entry, if the search ends there. `gone` is the first freed one.
    #[inline(always)]
    fn look(entry: &'t Entry, address: u64, gone: &mut Option<(&'t Entry, u64)>) -> Option<(&'t Entry, u64)> {
        let found = entry.now();
        if found & !GONE == address || found == NEVER {
            return Some((entry, found));
        }
        if found & GONE != 0 && gone.is_none() {
            *gone = Some((entry, found));
        }
        None
    }
}

/// A hash of which each bit depends on all of `value`.
const fn mix(value: u64) -> u64 {
    let product = value.wrapping_mul(FACTOR);
    (product ^ product >> 32).wrapping_mul(FACTOR) >> 16
}
