//! The ways into signal handlers: what the kernel calls, and where handlers of the program's return to.
//!
//! Each entry asks what is to run and on which frame, and goes there by a jump with nothing of us left on the stack: the
//! program's handler begins as the kernel would have begun it.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::activity::is_filtered;
use crate::arch;
use crate::chain::{self, Disposition};
use crate::context::Context;
use crate::siginfo::SignalInfo;
use crate::signal_stack;
use crate::slot::{self, Slot};
use crate::stack::Bounds;
use crate::sys;

/// Signals that the kernel knows.
const SIGNALS: usize = 64;

/// The program's handlers, by signal; kept when it goes back to the default, because one may be about to run.
static HANDLERS: [AtomicUsize; SIGNALS + 1] = [const { AtomicUsize::new(0) }; SIGNALS + 1];

/// The handler that the program has set for `signal`.
pub fn handler(signal: c_int) -> Option<&'static AtomicUsize> {
    HANDLERS.get(usize::try_from(signal).ok()?)
}

/// What runs next, in the two registers in which a function returns it.
#[repr(C)]
pub struct Next {
    /// The frame to run it on; 0: nothing runs, the signal is served.
    frame: u64,
    /// The handler, or what it is made from.
    what: usize,
}

impl Next {
    const NOTHING: Next = Next { frame: 0, what: 0 };
}

arch::signal_entries!(serve, begin, pass, return_stack);

unsafe extern "C" fn serve(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) -> Next {
    // SAFETY: the arguments are the kernel's, in its frame, which nobody else uses until the handler returns.
    let (info, context) = unsafe { (&mut *info.cast::<SignalInfo>(), Context::new(context)) };
    let has_room = signal_stack::has_room(context, slot::noted().map_or(Bounds::NONE, Slot::stack));
    match crate::on_signal(signal, info, context, has_room) {
        Some(wanted) => {
            let on_alternate = wanted.flags & libc::SA_ONSTACK != 0;
            Next { frame: settle(context, on_alternate), what: core::ptr::from_ref(wanted) as usize }
        }
        None => {
            lend_stack(context);
            Next::NOTHING
        }
    }
}

/// Gives the thread a signal stack of ours, if it has none: its next signal needs no room on its own.
fn lend_stack(context: Context<'_>) {
    if context.alternate_stack() == Bounds::NONE
        && let Some(slot) = slot::noted()
        && slot.signal_stack.bounds() != Bounds::NONE
        && !is_filtered()
        // The storage by which it was found may be another thread's.
        && slot.tid() == sys::thread_id()
    {
        signal_stack::lend(&slot.signal_stack, context);
    }
}

unsafe extern "C" fn begin(signal: c_int, context: *mut c_void, wanted: &'static Disposition) -> usize {
    // SAFETY: `on_own_signal` passes what the kernel did, and what `serve` returned.
    chain::begin(signal, unsafe { Context::new(context) }, wanted)
}

unsafe extern "C" fn pass(signal: c_int, context: *mut c_void, frame: u64) -> Next {
    let what = handler(signal).map_or(0, |handler| handler.load(Ordering::Acquire));
    // SAFETY: the argument is the kernel's if it lies in a frame of the kernel's; else nothing is read of it.
    let context = unsafe { Context::new(context) };
    let frame = if context.frame() == frame { settle(context, true) } else { frame };
    Next { frame, what }
}

/// Puts the frame where the program's handler would have it, and hides our stack in it.
#[cold]
#[inline(never)]
fn settle(context: Context<'_>, on_alternate: bool) -> u64 {
    let Some(slot) = slot::noted() else { return context.frame() };
    let stack = &slot.signal_stack;
    let moved = signal_stack::place(stack, context, on_alternate);
    match signal_stack::hide(stack, moved) {
        // SAFETY: a frame that was moved is as good as the kernel's.
        true => unsafe { arch::return_to(moved.frame(), selfwind_guest_restore as *const () as usize) },
        false => moved.frame(),
    }
}

/// Our stack again, at the return from a handler of the program's. The thread may be another by now.
unsafe extern "C" fn return_stack(context: *mut c_void) {
    if let Some(slot) = slot::noted() {
        // SAFETY: the `ucontext` that the kernel is about to restore.
        signal_stack::lend(&slot.signal_stack, unsafe { Context::new(context) });
    }
}

unsafe extern "C" {
    fn selfwind_restore();
    fn selfwind_guest_restore();
}

/// Where our own handler returns to.
pub fn restorer() -> usize {
    selfwind_restore as unsafe extern "C" fn() as usize
}
