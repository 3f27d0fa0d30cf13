//! The program's handlers of signals other than the sampling signal.
//!
//! The kernel calls [`entry::on_guest_signal`] in their place, which runs each handler on the stack where the program
//! expects it. The program only ever sees its own handlers.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use handler::entry;

use crate::signals;

/// Address of the handler that the kernel calls in place of the program's.
fn fallback() -> usize {
    entry::on_guest_signal as unsafe extern "C" fn(_, _, _) as usize
}

/// A change of one signal's handler in progress.
pub(super) struct Change {
    signal: c_int,
    /// The handler to pass to the kernel.
    pub(super) given: usize,
    /// The handler that the program had set before.
    before: usize,
    /// Whether the new handler has been stored.
    noted: bool,
}

impl Change {
    /// Begins a change of the handler of `signal` to `wanted`, or a query.
    pub(super) fn begin(signal: c_int, wanted: Option<usize>) -> Change {
        /// SIG_DFL, SIG_IGN, SIG_HOLD.
        const LARGEST_SPECIAL: usize = 2;
        let entry = entry::handler(signal);
        let before = entry.map_or(0, |handler| handler.load(Ordering::Relaxed));
        let given = wanted.unwrap_or(libc::SIG_DFL);
        let is_handler = given > LARGEST_SPECIAL && given != libc::SIG_ERR && given != fallback();
        match entry {
            // A child of `vfork` shares the memory but has its own signal handlers.
            Some(entry) if is_handler && signals::is_taken() && crate::agent::is_own_process() => {
                // A signal of before that is delivered now already runs the new handler, as it would a moment later.
                let before = entry.swap(given, Ordering::AcqRel);
                Change { signal, given: fallback(), before, noted: true }
            }
            _ => Change { signal, given, before, noted: false },
        }
    }

    /// The handler that the program sees when the kernel had `handler`.
    pub(super) fn seen(&self, handler: usize) -> usize {
        if handler == fallback() { self.before } else { handler }
    }

    /// Reverts the change, which the kernel has refused.
    pub(super) fn undo(&self) {
        if let (true, Some(entry)) = (self.noted, entry::handler(self.signal)) {
            entry.store(self.before, Ordering::Release);
        }
    }
}

/// Sets a handler with `real`, which returns the previous one or SIG_ERR.
pub(super) fn replace(signal: c_int, handler: usize, real: impl FnOnce(usize) -> usize) -> usize {
    let change = Change::begin(signal, Some(handler));
    let before = real(change.given);
    if before == libc::SIG_ERR {
        change.undo();
    }
    change.seen(before)
}
