//! Synchronizes the agent's system calls with the installation of a seccomp filter.
//!
//! The agent must not be inside a system call that the filter kills for. So code that makes system calls which the
//! program would not make announces this first, and the installation of a filter waits until no such code is active.
//! Afterwards no code can become active any more.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

static ACTIVE: AtomicU32 = AtomicU32::new(0);
/// The program has installed a seccomp filter, or is about to.
static FILTERED: AtomicBool = AtomicBool::new(false);

/// Forked children are restricted as well.
static INHERITED: AtomicBool = AtomicBool::new(true);

/// Sets whether forked children inherit what restricts system calls: all but Syscall User Dispatch.
pub fn set_inherited(inherited: bool) {
    INHERITED.store(inherited, Ordering::Relaxed);
}

/// Sets whether a system call may kill the process.
pub fn set_filtered(filtered: bool) {
    FILTERED.store(filtered, Ordering::Relaxed);
}

/// Whether a system call that the program itself would not make may kill the process.
#[inline]
pub fn is_filtered() -> bool {
    FILTERED.load(Ordering::Relaxed)
}

/// The right to make system calls that the program itself would not make.
pub struct Active(());

impl Active {
    /// Acquires the right, unless the program filters its system calls.
    pub fn enter() -> Option<Active> {
        ACTIVE.fetch_add(1, Ordering::Relaxed);
        let active = Active(());
        // Either this sees that a filter was announced, or the announcing thread sees that this is active.
        fence(Ordering::SeqCst);
        (!is_filtered()).then_some(active)
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        ACTIVE.fetch_sub(1, Ordering::Release);
    }
}

/// Lets nobody become active any more; [`anybody`] tells whether somebody still is.
pub fn announce_filter() {
    set_filtered(true);
    fence(Ordering::SeqCst);
}

/// Whether any thread is active.
pub fn anybody() -> bool {
    ACTIVE.load(Ordering::Acquire) != 0
}

/// Forgets, in a forked child, the active threads of the parent, and what the child has not inherited.
pub fn forget_others() {
    ACTIVE.store(0, Ordering::Relaxed);
    if !INHERITED.swap(true, Ordering::Relaxed) {
        set_filtered(false);
    }
}
