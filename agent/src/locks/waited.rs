//! What is being waited for: by its address, so that whoever gives it up knows, and leaves a stack for those who wait.
//!
//! A table with one place for each hash. Two locks that share it and are waited for at the same time are one too many: the
//! second has its waits recorded, but not who ended them. All is atomic, nothing waits: a signal handler may be in the
//! middle of any of this, and a thread may leave a wait without a word (a jump out of a signal handler).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use shm_format::LockNonce;

/// Places of the table.
const PLACES: usize = 4096;
const PLACE_BYTES: usize = size_of::<Place>();
/// The offset of an address's place is `address * FACTOR >> SHIFT & OFFSETS`.
pub(super) const FACTOR: i32 = 0x9e37_79b1_u32 as i32;
pub(super) const SHIFT: u32 = 24;
pub(super) const OFFSETS: usize = (PLACES - 1) * PLACE_BYTES;

const WAITERS: u64 = 0xffff;
const WAITERS_BITS: u32 = 16;
/// A link has `moment:44 | number:20`; a moment is so many ticks, as a power of two.
const MOMENT: u32 = 6;
const NUMBER_BITS: u32 = 20;

const _: () = assert!(PLACE_BYTES == 32 && LockNonce::MOST_LINKS == (1 << NUMBER_BITS) - 1);

/// One lock that is waited for. The entries look at the first word alone.
#[repr(C, align(32))]
pub(super) struct Place {
    /// `address:48 | waiters:16`; 0 if nobody waits.
    who: AtomicU64,
    /// From this tick on a wait would be sampled.
    due: AtomicU64,
    /// Who gave the lock up last, and when.
    link: AtomicU64,
    /// When the last of them began to wait.
    began: AtomicU64,
}

/// The table.
pub(super) static WAITED: [Place; PLACES] = [const {
    Place {
        who: AtomicU64::new(0),
        due: AtomicU64::new(0),
        link: AtomicU64::new(0),
        began: AtomicU64::new(0),
    }
}; PLACES];

/// Of the shortest wait so much may pass between two links: who ended it is found in the last part.
const PART: u64 = 4;

static LAST_LINK: AtomicU32 = AtomicU32::new(0);

/// The place of an address.
fn number(address: u64) -> usize {
    (address.wrapping_mul(i64::from(FACTOR) as u64) >> SHIFT) as usize % (PLACES * PLACE_BYTES) / PLACE_BYTES
}

fn place(number: usize) -> Option<&'static Place> {
    WAITED.get(number)
}

/// The calling thread begins at the tick `now` to wait for what is at `address`; its wait will be sampled if it lasts until
/// the tick `due`. The number of its place; none if another lock has that.
pub(super) fn enter(address: u64, now: u64, due: u64) -> Option<usize> {
    let number = number(address);
    let place = place(number)?;
    let join = |who: u64| match who {
        0 => Some(address << WAITERS_BITS | 1),
        _ if who >> WAITERS_BITS == address && who & WAITERS != WAITERS => Some(who + 1),
        _ => None,
    };
    let before = place.who.fetch_update(Ordering::Relaxed, Ordering::Relaxed, join).ok()?;
    place.began.store(now, Ordering::Relaxed);
    if before == 0 {
        place.due.store(due, Ordering::Relaxed);
    } else {
        place.due.fetch_min(due, Ordering::Relaxed);
    }
    Some(number)
}

/// The end of a wait that began at the tick `began`: the link of who ended it, 0 if nobody was seen.
pub(super) fn leave(number: usize, began: u64) -> u32 {
    let Some(place) = place(number) else { return 0 };
    let link = place.link.load(Ordering::Acquire);
    let less = |who: u64| match who & WAITERS {
        0 => None,
        1 => Some(0),
        _ => Some(who - 1),
    };
    let _ = place.who.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    let is_of_this = link >> NUMBER_BITS >= began >> MOMENT;
    if is_of_this { link as u32 & LockNonce::MOST_LINKS } else { 0 }
}

/// What is at `address` is about to be given up, at the tick `now`. A link if somebody waits for it whose wait would be
/// sampled `slack` ticks later, and the last link is `gap` ticks old, and a part of the wait; else 0. Who takes a lock again
/// and again while another waits does not leave a stack each time.
pub(super) fn give_up(address: u64, now: u64, slack: u64, gap: u64) -> u32 {
    let Some(place) = place(number(address)) else { return 0 };
    let is_waited_for = place.who.load(Ordering::Relaxed) >> WAITERS_BITS == address;
    if !is_waited_for || now.saturating_add(slack) < place.due.load(Ordering::Relaxed) {
        return 0;
    }
    let moment = now >> MOMENT;
    let before = place.link.load(Ordering::Relaxed) >> NUMBER_BITS;
    let waited = now.saturating_sub(place.began.load(Ordering::Relaxed));
    if moment.saturating_sub(before) < gap.max(waited / PART) >> MOMENT {
        return 0;
    }
    let link = LAST_LINK.fetch_add(1, Ordering::Relaxed) % LockNonce::MOST_LINKS + 1;
    // Pairs with the acquire in `leave`.
    place.link.store(moment << NUMBER_BITS | u64::from(link), Ordering::Release);
    link
}

/// Forgets, in a forked child, who waits in its parent.
pub(super) fn forget() {
    for place in &WAITED {
        // A page that is not written stays shared.
        if place.who.load(Ordering::Relaxed) != 0 {
            place.who.store(0, Ordering::Relaxed);
        }
    }
}
