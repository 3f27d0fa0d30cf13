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
//! Timers tick with CPU time, which a thread that waits does not use: only events need this.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::activity::is_filtered;
use crate::context::Context;
use crate::sys;

static MAY_ASK: AtomicBool = AtomicBool::new(false);

/// From now on the handler may ask the kernel about the program's signals: no filter decides on its system calls, unless the
/// program installs one later.
pub fn permit() {
    MAY_ASK.store(true, Ordering::Relaxed);
}

/// Ends the wait that would be repeated, if a signal is pending that does so. All signals must be blocked.
pub(crate) fn end_if_due(context: Context<'_>) {
    let may_ask = MAY_ASK.load(Ordering::Relaxed) && !is_filtered();
    if may_ask && context.may_repeat_wait() && is_due(context) && context.is_at_call() {
        context.end_wait();
    }
}

/// Whether the next signal that will be delivered has a handler without SA_RESTART.
#[cold]
fn is_due(context: Context<'_>) -> bool {
    let mut pending = sys::pending_signals() & !context.signal_mask();
    // The kernel begins with the lowest number. Signals without a handler do not matter for the call.
    while pending != 0 {
        let signal = pending.trailing_zeros() + 1;
        match sys::handler_flags(signal) {
            Some(flags) => return flags & libc::SA_RESTART as u64 == 0,
            None => pending &= pending - 1,
        }
    }
    false
}
