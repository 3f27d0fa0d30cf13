//! All slots, found by thread id.
//!
//! A slot stays forever in the chain of the first id that it was made for, modulo the number of chains. So chains only
//! grow, at their heads, and a search needs no synchronization with insertions: it ends after at most as many steps as
//! the chain has slots. Blocks of slots are never unmapped.

use core::mem::size_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use platform::activity::Active;
use platform::sys;

use super::note;
use super::state::{Phase, Slot, TAKEN};

/// Slots per block.
const BLOCK: usize = 64;
/// Maximum number of blocks: 524,288 slots are more threads than a process ever has.
const BLOCKS: usize = 8192;
/// Size of a block in bytes.
const BLOCK_BYTES: usize = BLOCK * size_of::<Slot>();
const CHAINS: usize = 128;
/// Attempts to modify a word that other threads modify as well.
const ATTEMPTS: usize = 64;

static ARENA: [AtomicPtr<Slot>; BLOCKS] = [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS];
/// Number of the first slot of each chain, plus one; 0 for none.
static FIRST: [AtomicU32; CHAINS] = [const { AtomicU32::new(0) }; CHAINS];
/// Number of slots that are in chains, or about to be.
static MADE: AtomicU32 = AtomicU32::new(0);

fn slot(number: usize) -> Option<&'static Slot> {
    let base = ARENA.get(number / BLOCK)?.load(Ordering::Acquire);
    // SAFETY: a published block holds `BLOCK` slots and is never unmapped.
    (!base.is_null()).then(|| unsafe { &*base.add(number % BLOCK) })
}

fn chain(tid: u32) -> Option<&'static AtomicU32> {
    FIRST.get(tid as usize % CHAINS)
}

/// The slots in the chain of `tid`.
fn candidates(tid: u32) -> impl Iterator<Item = &'static Slot> {
    // Acquire: pairs with the exchange in `insert`, for the slot's link.
    let first = chain(tid).map_or(0, |first| first.load(Ordering::Acquire));
    let at = |link: u32| (link as usize).checked_sub(1).and_then(slot);
    core::iter::successors(at(first), move |slot| at(slot.next.load(Ordering::Relaxed)))
}

/// The slot of thread `tid`, if it has one.
pub fn find(tid: u32) -> Option<&'static Slot> {
    candidates(tid).find(|slot| slot.is_taken() && slot.tid() == tid)
}

/// Claims a free slot for `tid`, which has none; maps more slots if necessary. `None` if there is no memory, or system
/// calls are filtered.
pub(super) fn claim_as(tid: u32, sequence: u32, phase: Phase) -> Option<&'static Slot> {
    let slot = match candidates(tid).find(|slot| slot.seize(Phase::Free)) {
        Some(slot) => slot,
        None => make(tid)?,
    };
    TAKEN.fetch_add(1, Ordering::Relaxed);
    slot.begin(tid, sequence, phase);
    Some(slot)
}

/// A new slot in the chain of `tid`, already seized.
#[cold]
fn make(tid: u32) -> Option<&'static Slot> {
    for _ in 0..ATTEMPTS {
        let number = MADE.load(Ordering::Relaxed);
        let Some(slot) = slot(number as usize) else {
            add_block(number as usize / BLOCK)?;
            continue;
        };
        if MADE.compare_exchange(number, number + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            slot.number.store(number, Ordering::Relaxed);
            slot.seize(Phase::Free);
            insert(slot, chain(tid)?);
            return Some(slot);
        }
    }
    None
}

/// Inserts a slot at the head of a chain. If all attempts fail it stays outside: it cannot be found by its thread's id.
fn insert(slot: &Slot, first: &AtomicU32) {
    let link = slot.number.load(Ordering::Relaxed) + 1;
    let mut head = first.load(Ordering::Relaxed);
    for _ in 0..ATTEMPTS {
        slot.next.store(head, Ordering::Relaxed);
        // Release: pairs with the acquire in `candidates`.
        match first.compare_exchange(head, link, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// Maps block `index`, unless another thread did; `None` if that fails.
fn add_block(index: usize) -> Option<()> {
    let entry = ARENA.get(index)?;
    let _active = Active::enter()?;
    let block = sys::map_unlocked(BLOCK_BYTES)?;
    // A zeroed slot is free. The release pairs with the acquire in `slot`.
    let (order, fresh) = (Ordering::Release, block.cast::<Slot>());
    if entry.compare_exchange(ptr::null_mut(), fresh, order, Ordering::Relaxed).is_err() {
        // SAFETY: mapped just now, and nobody else uses it.
        unsafe { sys::call(libc::SYS_munmap, [block as usize, BLOCK_BYTES, 0, 0, 0, 0]) };
    }
    Some(())
}

/// All slots ever made.
pub(super) fn all() -> impl Iterator<Item = &'static Slot> {
    (0..MADE.load(Ordering::Relaxed) as usize).map_while(slot)
}

/// All slots that belong to a thread.
pub fn taken() -> impl Iterator<Item = &'static Slot> {
    all().filter(|slot| slot.is_taken())
}

/// The slot with this number, modulo their count.
pub(crate) fn some(number: u32) -> Option<&'static Slot> {
    let made = MADE.load(Ordering::Relaxed);
    slot(number.checked_rem(made)? as usize)
}

/// The slot that a signal or a thread refers to by `token`.
#[inline]
pub fn at(token: u64) -> Option<&'static Slot> {
    let number = note::number(token)?;
    if number >= MADE.load(Ordering::Relaxed) as usize {
        return None;
    }
    slot(number)
}

/// The calling thread's slot, if its thread-local word refers to one.
#[inline(never)]
pub fn noted() -> Option<&'static Slot> {
    noted_inline()
}

/// [`noted`] for a thread that has just used its thread-local storage.
#[inline(always)]
pub(crate) fn noted_unchecked() -> Option<&'static Slot> {
    at(note::read_unchecked())
}

/// [`noted`] where a call would be a good part of the whole.
#[inline(always)]
pub(crate) fn noted_inline() -> Option<&'static Slot> {
    // A thread made by a bare `clone` may have arbitrary memory in place of the variable; a token is checked.
    at(note::read())
}

#[cfg(test)]
mod tests {
    use super::super::{adopt, claim as announce, discovered};
    use super::*;

    #[test]
    fn an_idle_thread_is_cheap() {
        // This is all that a thread without samples takes.
        assert!(size_of::<Slot>() <= 768, "{}", size_of::<Slot>());
    }

    #[test]
    fn slots_are_claimed_found_and_released() {
        let first = announce(11, 1).unwrap();
        let second = announce(11 + CHAINS as u32, 2).unwrap();
        assert!(!ptr::eq(first, second));
        assert!(at(first.token()).is_some_and(|slot| slot.tid() == 11));
        assert!(at(first.token() + 1000).is_none());
        assert!(at(ptr::from_ref(first) as u64).is_none());
        assert!(find(second.tid()).is_some_and(|slot| ptr::eq(slot, second)));
        assert!(find(12).is_none());
        let found = adopt(13, 3).unwrap();
        assert!(adopt(13, 9).is_some_and(|slot| ptr::eq(slot, found) && slot.sequence() == 3));
        assert_eq!(discovered().filter(|slot| slot.tid() == 13).count(), 1);
        first.release();
        assert!(find(11).is_none());
        assert!(announce(11 + 2 * CHAINS as u32, 4).is_some_and(|slot| ptr::eq(slot, first)));
    }

    #[test]
    fn hundreds_of_threads_are_all_found() {
        let tids = 100_000..100_600;
        for tid in tids.clone() {
            assert!(claim_as(tid, tid, Phase::Registered).is_some());
        }
        assert!(tids.clone().all(|tid| find(tid).is_some_and(|slot| slot.sequence() == tid)));
        let made = MADE.load(Ordering::Relaxed);
        tids.clone().filter_map(find).for_each(Slot::release);
        // The same again needs no more slots.
        assert!(tids.clone().all(|tid| claim_as(tid, tid, Phase::Registered).is_some()));
        assert!(MADE.load(Ordering::Relaxed) < made + 16, "other tests make some");
        tids.filter_map(find).for_each(Slot::release);
    }
}
