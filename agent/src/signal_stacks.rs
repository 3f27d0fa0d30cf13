//! The agent's alternate signal stacks: which threads have one, and how it is hidden from the program.
//!
//! A thread gets one when it starts or at its first sample, unless the program has set its own. There are none where
//! the program's calls are not seen: in an attached process, and once a Go runtime with cgo is loaded.

use core::sync::atomic::{AtomicBool, Ordering};

use handler::signal_stack::{self, GUARD, mapped};
use handler::slot::Slot;
use platform::activity::Active;
use platform::bounds::Bounds;
use platform::sys;

use crate::auxiliary;
use crate::dynamic::Symbols;
use crate::kernel;

/// False until the program's calls are interposed.
static LENT: AtomicBool = AtomicBool::new(false);

/// From now on threads get stacks.
pub(crate) fn begin() {
    signal_stack::set_frame(auxiliary::signal_frame());
    LENT.store(true, Ordering::Relaxed);
}

/// Checks whether an object contains Go's runtime, which bypasses the C library's `sigaltstack`.
pub(crate) fn look_into(object: &Symbols) {
    // Exported by every object with cgo, whether linked by Go's linker or the system's.
    if object.find(c"crosscall2", false).is_some() {
        signal_stack::leave_to_program();
    }
}

/// Maps a stack for the slot, unless one is left from an earlier thread.
pub(crate) fn provide(slot: &Slot) {
    let lent = LENT.load(Ordering::Relaxed) && !signal_stack::is_left_to_program();
    if !lent || slot.signal_stack.bounds() != Bounds::NONE {
        return;
    }
    // Unlocked: if the program locks all its memory (mlockall), part of this need not be locked.
    let Some(base) = sys::map_guarded(mapped(), GUARD) else { return };
    if !slot.signal_stack.set(base as u64) {
        // SAFETY: the mapping was made just now, and nobody else uses it.
        unsafe { kernel::unmap(base, mapped()) };
    }
}

/// Puts the calling thread on the slot's stack, unless the program has set one.
pub(crate) fn enter(slot: &Slot) {
    let is_there = slot.signal_stack.bounds() != Bounds::NONE && !signal_stack::is_left_to_program();
    if is_there && exchange(None).is_some_and(|now| now.ss_size == 0) {
        exchange(Some(&slot.signal_stack.description()));
    }
}

/// Takes the calling thread off the slot's stack, which another thread may then reuse.
pub(crate) fn leave(slot: &Slot) {
    let stack = &slot.signal_stack;
    if stack.bounds() == Bounds::NONE {
        return;
    }
    let left = Active::enter().is_some_and(|_active| match exchange(None) {
        Some(now) if stack.is(&now) => exchange(Some(&stack.believed(0))).is_some(),
        now => now.is_some(),
    });
    if !left {
        stack.abandon();
    }
}

/// Unmaps the stack that was made for the slot's thread, which has ended.
pub(crate) fn take_back(slot: &Slot) {
    let Bounds { low, high } = slot.signal_stack.take_private();
    if high > 0 {
        // SAFETY: a mapping of the agent that only the thread used, which has ended.
        unsafe { kernel::unmap(low as *mut u8, (high - low) as usize) };
    }
}

/// Replaces the calling thread's alternate stack if `new` is given; returns the previous one.
fn exchange(new: Option<&libc::stack_t>) -> Option<libc::stack_t> {
    let mut before = signal_stack::describe(Bounds::NONE);
    let new = new.map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: the kernel reads one description and writes one; a new stack belongs to this thread alone.
    unsafe {
        kernel::call(libc::SYS_sigaltstack, [new as usize, (&raw mut before) as usize, 0, 0, 0, 0]).ok()?;
    }
    Some(before)
}
