//! What a thread needs from its first sample on: its stack cache and its previous record.
//!
//! Some 220 KiB of address space, of which a thread touches what its stacks need. Most threads of most programs sleep,
//! so workspaces are lent: the handler takes one for a thread's first sample, and returns it with the slot. They are
//! mapped a few at a time, never unmapped, and not locked even if the program locks all of its memory.

use core::cell::UnsafeCell;
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use interpreter::Scratch;
use platform::activity::Active;
use platform::{huge_pages, sys};
use shm_format::{CopyBuffer, StackChain};
use unwind::StackCache;

use crate::probed_pages::ProbedPages;
use crate::recent_stacks::RecentStacks;
use crate::snapshot::Pin;

/// Workspaces mapped at a time.
const AT_ONCE: usize = 2;
const PAGE_BITS: u32 = 12;
/// Bits of a page number: user-space addresses have 47 bits unless more are requested.
const NUMBER_BITS: u32 = 36;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;
/// Attempts to take a workspace while other threads do.
const ATTEMPTS: usize = 64;

/// The workspace of one thread, on pages of its own.
#[repr(C, align(4096))]
pub(super) struct Workspace {
    pub(super) chain: UnsafeCell<StackChain>,
    pub(super) stack_cache: UnsafeCell<StackCache>,
    pub(super) probed_pages: UnsafeCell<ProbedPages>,
    /// The remaining fields: most programs never touch them.
    pub(super) scratch: UnsafeCell<Scratch>,
    pub(super) copy_buffer: UnsafeCell<CopyBuffer>,
    /// Null until the thread records an allocation.
    pub(super) recent_stacks: UnsafeCell<*mut RecentStacks>,
    /// While it is free: page number of the next free one.
    next: AtomicU64,
}

/// The parts of a workspace that a walk needs, borrowed exclusively.
pub(crate) struct Workbench<'a> {
    pub(crate) stack_cache: &'a mut StackCache,
    pub(crate) chain: &'a mut StackChain,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) pages: &'a mut ProbedPages,
    pub(crate) pin: &'a Pin,
}

/// `changes:28 | number:36` of the first free workspace. The number is that of its page, 0 for none; the count of changes
/// avoids the ABA problem.
static FREE: AtomicU64 = AtomicU64::new(0);

fn changed(head: u64, number: u64) -> u64 {
    (head & !NUMBER).wrapping_add(1 << NUMBER_BITS) | number
}

/// A cleared workspace; `None` if there is no memory, or system calls are filtered.
#[cold]
pub(super) fn take() -> Option<&'static Workspace> {
    let found = take_free().or_else(|| map().map(|first| first.cast_const()));
    // SAFETY: a mapped workspace, zeroed or used before, that nobody else has.
    let workspace = unsafe { found?.as_ref() }?;
    // SAFETY: taken just now, so nobody else has it.
    unsafe {
        (*workspace.stack_cache.get()).forget();
        (*workspace.chain.get()).reset();
        (*workspace.scratch.get()).reset();
        workspace.forget_recent_stacks();
    }
    Some(workspace)
}

impl Workspace {
    /// Forgets all known stacks.
    ///
    /// # Safety
    /// The caller must own the workspace.
    pub(super) unsafe fn forget_recent_stacks(&self) {
        // SAFETY: the caller owns it; what it points to is never unmapped.
        if let Some(recent) = unsafe { (*self.recent_stacks.get()).as_mut() } {
            recent.forget();
        }
    }

    /// The thread's known stacks, mapped when first needed; null if there is no memory, or system calls are filtered.
    ///
    /// # Safety
    /// The caller must own the workspace.
    pub(super) unsafe fn recent_stacks(&self) -> *mut RecentStacks {
        // SAFETY: the caller owns it.
        let recent = unsafe { &mut *self.recent_stacks.get() };
        if recent.is_null()
            && let Some(_active) = Active::enter()
            && let Some(mapped) = huge_pages::map(size_of::<RecentStacks>())
        {
            *recent = mapped.cast();
        }
        *recent
    }
}

fn take_free() -> Option<*const Workspace> {
    let mut head = FREE.load(Ordering::Acquire);
    for _ in 0..ATTEMPTS {
        let number = head & NUMBER;
        if number == 0 {
            return None;
        }
        let first = (number << PAGE_BITS) as *const Workspace;
        // SAFETY: workspaces stay mapped forever. The value read is stale if another thread was faster, which the
        // exchange detects.
        let next = unsafe { (*first).next.load(Ordering::Relaxed) };
        match FREE.compare_exchange(head, changed(head, next), Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => return Some(first),
            Err(now) => head = now,
        }
    }
    None
}

/// Returns a workspace.
pub(super) fn give(workspace: *const Workspace) {
    let number = (workspace as u64) >> PAGE_BITS;
    // SAFETY: mapped forever, and owned by the caller until the exchange succeeds.
    let next = unsafe { &(*workspace).next };
    let mut head = FREE.load(Ordering::Relaxed);
    for _ in 0..ATTEMPTS {
        next.store(head & NUMBER, Ordering::Relaxed);
        // Release: pairs with the acquires in `take_free`.
        match FREE.compare_exchange(head, changed(head, number), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// Maps several, keeps the first for the caller and frees the others for all.
fn map() -> Option<*mut Workspace> {
    let _active = Active::enter()?;
    let first = sys::map_unlocked(AT_ONCE * size_of::<Workspace>())?.cast::<Workspace>();
    if (first as u64) >> (PAGE_BITS + NUMBER_BITS) != 0 {
        return None;
    }
    for number in 1..AT_ONCE {
        // SAFETY: inside the mapping.
        give(unsafe { first.add(number) });
    }
    Some(first)
}

/// No workspace: a slot before its first sample.
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
