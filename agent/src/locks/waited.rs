//! The table of locks that are being waited for, by address, so that the thread that releases one records its stack.
//!
//! One entry per hash value: of two locks with the same hash that are waited for at the same time, only the first gets
//! holder stacks; the waits of both are recorded. Everything is atomic and nothing waits: a signal handler may
//! interrupt any of this, and a thread may leave a wait without notice (a jump out of a signal handler).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use shm_format::LockNonce;

/// Number of entries.
const ENTRIES: usize = 4096;
const ENTRY_BYTES: usize = size_of::<Entry>();
/// The offset of an address's entry is `address * FACTOR >> SHIFT & OFFSETS`.
pub(super) const FACTOR: i32 = 0x9e37_79b1_u32 as i32;
pub(super) const SHIFT: u32 = 24;
pub(super) const OFFSETS: usize = (ENTRIES - 1) * ENTRY_BYTES;

const WAITERS: u64 = 0xffff;
const WAITERS_BITS: u32 = 16;
/// A link word is `time:44 | number:20`, with the time in units of this power of two of ticks.
const TIME_UNIT: u32 = 6;
const NUMBER_BITS: u32 = 20;

const _: () = assert!(ENTRY_BYTES == 32 && LockNonce::MOST_LINKS == (1 << NUMBER_BITS) - 1);

/// The entry of one lock. The assembly entries test its first word only.
#[repr(C, align(32))]
pub(super) struct Entry {
    /// `address:48 | waiters:16`; 0 if nobody waits.
    who: AtomicU64,
    /// The tick from which on a wait would be sampled.
    due: AtomicU64,
    /// Link of the last release, and its time.
    link: AtomicU64,
    /// When the most recent waiter began to wait.
    began: AtomicU64,
}

/// The table.
pub(super) static WAITED: [Entry; ENTRIES] = [const {
    Entry {
        who: AtomicU64::new(0),
        due: AtomicU64::new(0),
        link: AtomicU64::new(0),
        began: AtomicU64::new(0),
    }
}; ENTRIES];

/// Fraction of a wait that must pass between two links: the last link is then close to the end of the wait.
const WAIT_FRACTION: u64 = 4;

static LAST_LINK: AtomicU32 = AtomicU32::new(0);

/// Index of an address's entry.
fn number(address: u64) -> usize {
    (address.wrapping_mul(i64::from(FACTOR) as u64) >> SHIFT) as usize % (ENTRIES * ENTRY_BYTES) / ENTRY_BYTES
}

fn entry(number: usize) -> Option<&'static Entry> {
    WAITED.get(number)
}

/// Enters the calling thread as a waiter for `address` from tick `now`; its wait will be sampled if it lasts until tick
/// `due`. Returns the index of the entry; `None` if another lock occupies it.
pub(super) fn enter(address: u64, now: u64, due: u64) -> Option<usize> {
    let number = number(address);
    let entry = entry(number)?;
    let join = |who: u64| match who {
        0 => Some(address << WAITERS_BITS | 1),
        _ if who >> WAITERS_BITS == address && who & WAITERS != WAITERS => Some(who + 1),
        _ => None,
    };
    let before = entry.who.fetch_update(Ordering::Relaxed, Ordering::Relaxed, join).ok()?;
    entry.began.store(now, Ordering::Relaxed);
    if before == 0 {
        entry.due.store(due, Ordering::Relaxed);
    } else {
        entry.due.fetch_min(due, Ordering::Relaxed);
    }
    Some(number)
}

/// Ends a wait that began at tick `began`. Returns the link of the release that ended it, 0 if none was seen.
pub(super) fn leave(number: usize, began: u64) -> u32 {
    let Some(entry) = entry(number) else { return 0 };
    let link = entry.link.load(Ordering::Acquire);
    let less = |who: u64| match who & WAITERS {
        0 => None,
        1 => Some(0),
        _ => Some(who - 1),
    };
    let _ = entry.who.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    let is_of_this = link >> NUMBER_BITS >= began >> TIME_UNIT;
    if is_of_this { link as u32 & LockNonce::MOST_LINKS } else { 0 }
}

/// Called at tick `now`, before `address` is released. Returns a link if a waiter's wait would be sampled `slack` ticks
/// later and the last link is old enough: `gap` ticks, and a fraction of the wait. Otherwise 0. A thread that takes a
/// lock again and again while another waits thus does not record a stack each time.
pub(super) fn give_up(address: u64, now: u64, slack: u64, gap: u64) -> u32 {
    let Some(entry) = entry(number(address)) else { return 0 };
    let is_waited_for = entry.who.load(Ordering::Relaxed) >> WAITERS_BITS == address;
    if !is_waited_for || now.saturating_add(slack) < entry.due.load(Ordering::Relaxed) {
        return 0;
    }
    let time = now >> TIME_UNIT;
    let before = entry.link.load(Ordering::Relaxed) >> NUMBER_BITS;
    let waited = now.saturating_sub(entry.began.load(Ordering::Relaxed));
    if time.saturating_sub(before) < gap.max(waited / WAIT_FRACTION) >> TIME_UNIT {
        return 0;
    }
    let link = LAST_LINK.fetch_add(1, Ordering::Relaxed) % LockNonce::MOST_LINKS + 1;
    // Release: pairs with the acquire in `leave`.
    entry.link.store(time << NUMBER_BITS | u64::from(link), Ordering::Release);
    link
}

/// In a forked child: forgets the waits of the parent's threads.
pub(super) fn forget() {
    for entry in &WAITED {
        // Do not write unmodified pages, so that they stay shared.
        if entry.who.load(Ordering::Relaxed) != 0 {
            entry.who.store(0, Ordering::Relaxed);
        }
    }
}
