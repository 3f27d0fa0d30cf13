//! Who may make a system call now.
//!
//! A program that is about to filter its system calls, in one thread or in all, must not meet an agent in the middle of
//! one that the filter kills for. So whoever makes calls that the program would not make says so before, and the
//! installation of a filter waits until they are done. Afterwards nobody enters any more.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

static ACTIVE: AtomicU32 = AtomicU32::new(0);
/// The program has restricted its system calls.
static FILTERED: AtomicBool = AtomicBool::new(false);

/// Notes whether a system call may kill.
pub fn set_filtered(filtered: bool) {
    FILTERED.store(filtered, Ordering::Relaxed);
}

/// True if a system call that the program would not make itself may kill.
#[inline]
pub fn is_filtered() -> bool {
    FILTERED.load(Ordering::Relaxed)
}

/// The right to make system calls that the program may not make itself.
pub struct Active(());

impl Active {
    /// The right, unless the program filters its calls.
    pub fn enter() -> Option<Active> {
        ACTIVE.fetch_add(1, Ordering::Relaxed);
        let active = Active(());
        // Either this sees the filter announced, or who announces it sees this at work.
        fence(Ordering::SeqCst);
        (!is_filtered()).then_some(active)
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        ACTIVE.fetch_sub(1, Ordering::Release);
    }
}

/// Keeps everybody from making calls; who is at it still shows in [`anybody`].
pub fn announce_filter() {
    set_filtered(true);
    fence(Ordering::SeqCst);
}

/// True while somebody makes calls.
pub fn anybody() -> bool {
    ACTIVE.load(Ordering::Acquire) != 0
}

/// Forgets, in a forked child, the threads that are not there any more.
pub fn forget_others() {
    ACTIVE.store(0, Ordering::Relaxed);
}
