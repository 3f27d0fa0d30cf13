//! Entry points of signal handlers: what the kernel calls, and what the program's handlers return to.
//!
//! Each entry decides what runs on which frame, and jumps there with nothing of the agent left on the stack: the
//! program's handler begins as if the kernel had called it.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

use platform::activity::is_filtered;
use platform::bounds::Bounds;
use platform::sys;

use crate::arch;
use crate::chain::{self, Disposition};
use crate::context::Context;
use crate::shared_stack;
use crate::siginfo::SignalInfo;
use crate::signal_stack;
use crate::slot::{self, Slot};

/// Number of signals of the kernel.
const SIGNALS: usize = 64;

/// The program's handlers, by signal; kept when a signal is reset to the default, because one may be about to run.
static HANDLERS: [AtomicUsize; SIGNALS + 1] = [const { AtomicUsize::new(0) }; SIGNALS + 1];

/// The handler that the program has set for `signal`.
pub fn handler(signal: c_int) -> Option<&'static AtomicUsize> {
    HANDLERS.get(usize::try_from(signal).ok()?)
}

/// What runs next; returned in two registers.
#[repr(C)]
pub struct Next {
    /// The frame to run it on; 0 if the signal has been handled completely.
    frame: u64,
    /// The handler, or the disposition to begin.
    what: usize,
}

impl Next {
    const NOTHING: Next = Next { frame: 0, what: 0 };
}

arch::signal_entries!(serve, begin, pass, return_stack);

unsafe extern "C" fn serve(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) -> Next {
    // SAFETY: the arguments are the kernel's, in its frame, which nobody else uses until the handler returns.
    let (info, context) = unsafe { (&mut *info.cast::<SignalInfo>(), Context::new(context)) };
    let noted = slot::noted_inline();
    let has_room = signal_stack::has_room(context, noted.map_or(Bounds::NONE, Slot::stack));
    match crate::on_signal(signal, info, context, noted, has_room) {
        Some(wanted) => {
            let on_alternate = wanted.flags & libc::SA_ONSTACK != 0;
            Next { frame: settle(context, on_alternate), what: core::ptr::from_ref(wanted) as usize }
        }
        None => {
            if context.alternate_stack() == Bounds::NONE {
                lend_stack(context);
            }
            Next::NOTHING
        }
    }
}

/// Gives the thread, which has no signal stack, that of the agent, if there is one: so that its next signal needs no space
/// on its own stack.
#[cold]
#[inline(never)]
fn lend_stack(context: Context<'_>) {
    if let Some(slot) = slot::noted()
        && slot.signal_stack.bounds() != Bounds::NONE
        && !is_filtered()
        // The thread-local storage through which it was found may be another thread's.
        && slot.tid() == sys::thread_id()
    {
        shared_stack::keep_apart(slot, context);
    }
}

unsafe extern "C" fn begin(signal: c_int, context: *mut c_void, wanted: &'static Disposition) -> usize {
    // SAFETY: `on_own_signal` passes what the kernel did, and what `serve` returned.
    chain::begin(signal, unsafe { Context::new(context) }, wanted)
}

unsafe extern "C" fn pass(signal: c_int, context: *mut c_void, frame: u64) -> Next {
    let what = handler(signal).map_or(0, |handler| handler.load(Ordering::Acquire));
    // SAFETY: the argument is the kernel's if it lies in a signal frame; otherwise nothing is read from it.
    let context = unsafe { Context::new(context) };
    let frame = if context.frame() == frame { settle(context, true) } else { frame };
    Next { frame, what }
}

/// Moves the frame to where the program's handler expects it, and hides the agent's stack in it.
#[cold]
#[inline(never)]
fn settle(context: Context<'_>, on_alternate: bool) -> u64 {
    let Some(slot) = slot::noted() else { return context.frame() };
    let stack = &slot.signal_stack;
    let moved = signal_stack::place(stack, context, on_alternate, || shared_stack::free_part(slot));
    match signal_stack::hide(stack, moved) {
        // SAFETY: a frame that was moved is equivalent to the kernel's.
        true => unsafe { arch::return_to(moved.frame(), selfwind_guest_restore as *const () as usize) },
        false => moved.frame(),
    }
}

/// Restores the agent's signal stack at the return from a handler of the program. The thread may have changed
/// meanwhile.
unsafe extern "C" fn return_stack(context: *mut c_void) {
    if let Some(slot) = slot::noted() {
        // SAFETY: the `ucontext` that the kernel is about to restore.
        shared_stack::resume(slot, unsafe { Context::new(context) });
    }
}

unsafe extern "C" {
    fn selfwind_restore();
    fn selfwind_guest_restore();
}

/// The code that the agent's handler returns to.
pub fn restorer() -> usize {
    selfwind_restore as unsafe extern "C" fn() as usize
}
