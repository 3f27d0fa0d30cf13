//! The program's handlers of signals other than the sampling signal.
//!
//! The kernel calls [`entry::on_guest_signal`] for them, which puts each on the stack where the program expects it. The
//! program sees its own handlers only.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use handler::entry;

use crate::signals;

/// What stands for every handler of the program's.
fn fallback() -> usize {
    entry::on_guest_signal as unsafe extern "C" fn(_, _, _) as usize
}

/// A change of the handler of one signal that is under way.
pub(super) struct Change {
    signal: c_int,
    /// What the kernel shall have.
    pub(super) given: usize,
    /// The handler that the program had set before.
    before: usize,
    /// The handler was noted.
    noted: bool,
}

impl Change {
    /// Prepares that the program sets `wanted` for `signal`, or only asks.
    pub(super) fn begin(signal: c_int, wanted: Option<usize>) -> Change {
        /// SIG_DFL, SIG_IGN, SIG_HOLD.
        const LARGEST_SPECIAL: usize = 2;
        let entry = entry::handler(signal);
        let before = entry.map_or(0, |handler| handler.load(Ordering::Relaxed));
        let given = wanted.unwrap_or(libc::SIG_DFL);
        let is_handler = given > LARGEST_SPECIAL && given != libc::SIG_ERR && given != fallback();
        match entry {
            // A child of `vfork` shares the memory but not the handlers.
            Some(entry) if is_handler && signals::is_taken() && crate::agent::is_own_process() => {
                // A signal of before that comes now goes to the new handler, as it would a moment later.
                let before = entry.swap(given, Ordering::AcqRel);
                Change { signal, given: fallback(), before, noted: true }
            }
            _ => Change { signal, given, before, noted: false },
        }
    }

    /// What the program sees of `handler`, which the kernel had before.
    pub(super) fn seen(&self, handler: usize) -> usize {
        if handler == fallback() { self.before } else { handler }
    }

    /// Forgets the change, which the kernel has refused.
    pub(super) fn undo(&self) {
        if let (true, Some(entry)) = (self.noted, entry::handler(self.signal)) {
            entry.store(self.before, Ordering::Release);
        }
    }
}

/// Sets a handler with `real`, which gives the one before or SIG_ERR.
pub(super) fn replace(signal: c_int, handler: usize, real: impl FnOnce(usize) -> usize) -> usize {
    let change = Change::begin(signal, Some(handler));
    let before = real(change.given);
    if before == libc::SIG_ERR {
        change.undo();
    }
    change.seen(before)
}
