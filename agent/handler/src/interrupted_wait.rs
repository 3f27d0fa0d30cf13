//! Waits that the agent's signal interrupted, and that the kernel is about to continue.
//!
//! A signal that ends a wait may come together with the agent's, because the thread runs for a moment when it wakes. The kernel
//! then delivers the agent's first (a perf event's always), and decides by its handler, which has SA_RESTART, that the system
//! call is repeated. Programs rely on EINTR to see their own signal: an alarm, a request to stop. So the call ends with EINTR if
//! the program's signal, had it come alone, would have ended it.
//!
//! What must never happen here: EINTR for a call that no signal of the program would have ended; a system call that a filter of
//! the program may kill for.
//!
//! It is done for kernel events only. Timers tick with CPU time, which a waiting thread does not use, and the kernel delivers their
//! signal after most of the program's.

use core::sync::atomic::{AtomicBool, Ordering};

use platform::activity::Active;
use platform::sys;

use crate::context::Context;

static MAY_ASK: AtomicBool = AtomicBool::new(false);

/// From now on the handler may ask the kernel about the program's signals: no filter decides on its system calls, unless the
/// program installs one later.
pub fn permit() {
    MAY_ASK.store(true, Ordering::Relaxed);
}

/// Ends the wait that would be repeated, if a signal is pending that does so. All signals must be blocked.
#[inline]
pub(crate) fn end_if_due(context: Context<'_>) {
    if MAY_ASK.load(Ordering::Relaxed) && context.may_repeat_wait() {
        ask(context);
    }
}

#[cold]
fn ask(context: Context<'_>) {
    // Another thread may be about to install a filter for all.
    let Some(_active) = Active::enter() else { return };
    if is_due(sys::pending_signals() & !context.signal_mask()) && context.is_at_call() {
        context.end_wait();
    }
}

/// Whether the first of these signals that has a handler has one without SA_RESTART. The kernel begins with the lowest number;
/// signals without a handler do not matter for the call.
fn is_due(pending: u64) -> bool {
    let mut signals = (1..=u64::BITS).filter(|signal| pending >> (signal - 1) & 1 != 0);
    signals.find_map(sys::handler_flags).is_some_and(|flags| flags & libc::SA_RESTART as u64 == 0)
}
