//! The program's alternate signal stacks.
//!
//! What the program sets is passed to the kernel. Where it has none, the kernel knows a stack of the agent, which is
//! hidden from the program.

use core::ffi::c_int;

use handler::activity::Active;
use handler::signal_stack;
use handler::slot::{self, Slot};
use handler::stack::Bounds;
use handler::sys;

use super::real::{call_real, fail, real_functions};

real_functions! {
    SIGALTSTACK = c"sigaltstack";
}

/// POSIX `sigaltstack`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> c_int {
    let real = |new, old| {
        call_real!(
            SIGALTSTACK as fn(*const libc::stack_t, *mut libc::stack_t) -> c_int,
            (new, old),
            else fail(libc::ENOSYS)
        )
    };
    let lent = slot::noted().filter(|slot| slot.signal_stack.bounds() != Bounds::NONE);
    match lent {
        // SAFETY: null, or valid by this function's contract.
        Some(slot) => unsafe { change(slot, new, old, real) },
        None => real(new, old),
    }
}

/// Changes the stack with `real`, translating the requested and the reported state.
///
/// # Safety
/// The pointers must be null or valid.
unsafe fn change(
    slot: &Slot,
    new: *const libc::stack_t,
    old: *mut libc::stack_t,
    real: impl Fn(*const libc::stack_t, *mut libc::stack_t) -> c_int,
) -> c_int {
    /// A flag beside the mode (include/uapi/linux/signal.h, SS_AUTODISARM).
    const AUTODISARM: c_int = c_int::MIN;
    // SAFETY: the caller fulfils this function's contract.
    let (wanted, seen) = unsafe { (new.as_ref(), old.as_mut()) };
    let is_off = wanted.is_some_and(|wanted| wanted.ss_flags & !AUTODISARM == libc::SS_DISABLE);
    // A thread made by a bare `clone` may share another's thread-local storage; a child of `vfork` shares its parent's.
    let none = is_off && Active::enter().is_some_and(|_active| slot.tid() == sys::thread_id());
    let ours = slot.signal_stack.description();
    let mut before = signal_stack::describe(Bounds::NONE);
    let result = real(if none { &raw const ours } else { new }, &raw mut before);
    if let (0, Some(seen)) = (result, seen) {
        *seen = if slot.signal_stack.is(&before) { signal_stack::describe(Bounds::NONE) } else { before };
    }
    result
}
