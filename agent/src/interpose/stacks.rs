//! The program's alternate signal stacks.
//!
//! What the program sets is passed to the kernel. Where it has none, a small one, or the same one as another thread, the
//! kernel knows a stack of the agent, which is hidden from the program.

use core::ffi::c_int;

use handler::shared_stack;
use handler::signal_stack::{self, AUTODISARM};
use handler::slot::{self, Slot};
use platform::activity::Active;
use platform::bounds::Bounds;
use platform::sys;

use crate::lock::Masked;

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
    // SAFETY: the caller fulfils this function's contract.
    let (wanted, seen) = unsafe { (new.as_ref(), old.as_mut()) };
    let stack = &slot.signal_stack;
    let here = (&raw const seen) as u64;
    let believed = stack.believed(here);
    let (ours, mut before) = (stack.description(), signal_stack::describe(Bounds::NONE));
    let result = match wanted {
        // A thread made by a bare `clone` may share another's thread-local storage; a child of `vfork` shares its parent's.
        Some(wanted) if Active::enter().is_some_and(|_active| slot.tid() == sys::thread_id()) => {
            if believed.ss_flags & libc::SS_ONSTACK != 0 {
                return fail(libc::EPERM);
            }
            // No tick may see the kernel's state and the slot's differ.
            let _masked = Masked::new();
            let result = real(new, &raw mut before);
            if result == 0 && is_left_to_agent(slot, wanted) {
                real(&raw const ours, core::ptr::null_mut());
                stack.settle(stack.bounds().low);
            }
            result
        }
        _ => real(new, &raw mut before),
    };
    if let (0, Some(seen)) = (result, seen) {
        *seen = if stack.is(&before) { believed } else { before };
    }
    result
}

/// Notes the stack that the program has set; returns whether the kernel must know that of the agent instead.
fn is_left_to_agent(slot: &Slot, set: &libc::stack_t) -> bool {
    let program = match set.ss_flags & !AUTODISARM {
        libc::SS_DISABLE => Bounds::NONE,
        _ => Bounds { low: set.ss_sp as u64, high: (set.ss_sp as u64).saturating_add(set.ss_size as u64) },
    };
    let is_shared = shared_stack::note(slot, program, set.ss_flags);
    // A stack that is to be disabled while a handler runs stays with the kernel, which alone can do that.
    let is_small = signal_stack::is_small(program) && set.ss_flags & AUTODISARM == 0;
    let hides = (is_shared || is_small) && !signal_stack::is_left_to_program();
    slot.signal_stack.set_hides_program(hides);
    hides || program == Bounds::NONE
}
