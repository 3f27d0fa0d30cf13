//! What a thread needs for its samples and not before the first one: the memory of its last walk and of its last record.
//!
//! Some 130 KiB of addresses, of which a thread touches what its stacks need. Most threads of most programs sleep, so
//! workspaces are lent: the handler takes one for a thread's first sample, and it goes back with the slot. They are
//! mapped a few at a time, never given back to the kernel, and not locked into memory where the program locks all of its
//! own.

use core::cell::UnsafeCell;
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use shm_format::{CopyBuffer, StackChain};
use unwind::StackCache;

use crate::activity::Active;
use crate::interpreter::Scratch;
use crate::probed_pages::ProbedPages;
use crate::snapshot::Pin;
use crate::sys;

/// Workspaces mapped at a time.
const AT_ONCE: usize = 2;
const PAGE_BITS: u32 = 12;
/// Bits of a page's number: user space has addresses of 47 bits unless asked for more.
const PLACE_BITS: u32 = 36;
const PLACE: u64 = (1 << PLACE_BITS) - 1;
/// Times that a thread tries to take a workspace while others do.
const ATTEMPTS: usize = 64;

/// One thread's, on pages of its own.
#[repr(C, align(4096))]
pub(super) struct Workspace {
    /// The place of the next free one, while it is free.
    next: AtomicU64,
    pub(super) stack_cache: UnsafeCell<StackCache>,
    pub(super) chain: UnsafeCell<StackChain>,
    pub(super) probed_pages: UnsafeCell<ProbedPages>,
    /// The last two: most programs touch nothing of them.
    pub(super) scratch: UnsafeCell<Scratch>,
    pub(super) copy_buffer: UnsafeCell<CopyBuffer>,
}

/// What a walk needs of its thread's, each for the caller alone.
pub(crate) struct Workbench<'a> {
    pub(crate) stack_cache: &'a mut StackCache,
    pub(crate) chain: &'a mut StackChain,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) pages: &'a mut ProbedPages,
    pub(crate) pin: &'a Pin,
}

/// `changes:28 | place:36` of the first free workspace; the place is its address in pages, 0 for none. The count of
/// changes keeps a slow thread from taking the head for the same one after it went and came.
static FREE: AtomicU64 = AtomicU64::new(0);

fn changed(head: u64, place: u64) -> u64 {
    (head & !PLACE).wrapping_add(1 << PLACE_BITS) | place
}

/// A workspace without memories of anybody; none if the kernel gives no memory, or may not be asked.
#[cold]
pub(super) fn take() -> Option<&'static Workspace> {
    let found = take_free().or_else(|| map().map(|first| first.cast_const()));
    // SAFETY: a mapped workspace, zeroed or used before, that nobody else has.
    let workspace = unsafe { found?.as_ref() }?;
    // SAFETY: nobody else has it.
    unsafe {
        (*workspace.stack_cache.get()).forget();
        (*workspace.chain.get()).reset();
        (*workspace.scratch.get()).reset();
    }
    Some(workspace)
}

fn take_free() -> Option<*const Workspace> {
    let mut head = FREE.load(Ordering::Acquire);
    for _ in 0..ATTEMPTS {
        let place = head & PLACE;
        if place == 0 {
            return None;
        }
        let first = (place << PAGE_BITS) as *const Workspace;
        // SAFETY: workspaces stay mapped for ever. What is read is old if another thread was faster, which the exchange
        // finds out.
        let next = unsafe { (*first).next.load(Ordering::Relaxed) };
        match FREE.compare_exchange(head, changed(head, next), Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => return Some(first),
            Err(now) => head = now,
        }
    }
    None
}

/// Gives a workspace back.
pub(super) fn give(workspace: *const Workspace) {
    let place = (workspace as u64) >> PAGE_BITS;
    // SAFETY: mapped for ever, and the caller's until the exchange succeeds.
    let next = unsafe { &(*workspace).next };
    let mut head = FREE.load(Ordering::Relaxed);
    for _ in 0..ATTEMPTS {
        next.store(head & PLACE, Ordering::Relaxed);
        // Pairs with the acquires in `take_free`.
        match FREE.compare_exchange(head, changed(head, place), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// Maps some more, keeps the first for the caller and gives the others to all.
fn map() -> Option<*mut Workspace> {
    let _active = Active::enter()?;
    let first = sys::map_unlocked(AT_ONCE * size_of::<Workspace>())?.cast::<Workspace>();
    if (first as u64) >> (PAGE_BITS + PLACE_BITS) != 0 {
        return None;
    }
    for number in 1..AT_ONCE {
        // SAFETY: inside the mapping.
        give(unsafe { first.add(number) });
    }
    Some(first)
}

/// Empty: the place of a slot's workspace before its first sample.
pub(super) const NONE: *mut Workspace = ptr::null_mut();

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn what_was_given_back_comes_again() {
        let taken: Vec<&Workspace> = (0..5).filter_map(|_| take()).collect();
        assert_eq!(taken.len(), 5);
        for (number, one) in taken.iter().enumerate() {
            assert!(taken.iter().skip(number + 1).all(|other| !ptr::eq(*one, *other)));
        }
        let last = *taken.last().unwrap();
        give(last);
        assert!(take().is_some_and(|again| ptr::eq(again, last)));
        taken.into_iter().for_each(|workspace| give(workspace));
    }

    #[test]
    fn threads_share_without_meeting() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..2000u64 {
                        let workspace = take().unwrap();
                        workspace.next.store(round, Ordering::Relaxed);
                        std::hint::spin_loop();
                        assert_eq!(workspace.next.load(Ordering::Relaxed), round);
                        give(workspace);
                    }
                });
            }
        });
    }
}
