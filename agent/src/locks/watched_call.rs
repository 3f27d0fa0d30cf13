//! A call of a lock function that has to wait, or for which somebody may wait.

use handler::caller::Caller;

use super::kind::Kind;
use crate::preserved_registers::PreservedRegisters;

/// A watched call, as the interposed functions push it on the stack.
#[repr(C)]
pub(super) struct Call {
    kind: usize,
    /// The argument registers.
    pub(super) arguments: [u64; 6],
    preserved: PreservedRegisters,
}

impl Call {
    pub(super) fn kind(&self) -> Kind {
        Kind(self.kind)
    }

    pub(super) fn argument(&self, number: usize) -> u64 {
        self.arguments.get(number).copied().unwrap_or(0)
    }

    /// The calling function; `entry` is the address of the called one.
    pub(super) fn caller(&self, entry: u64) -> Caller<'_> {
        self.preserved.caller(entry)
    }
}

/// Gives the address of the called function, which only a recorded call needs.
pub(super) type EntryOf = fn(&Call) -> u64;

/// What to do with a call; returned in two registers.
#[repr(C)]
pub(super) struct Decision {
    /// Passed on to `after`; or the result, if the call has been made.
    pub(super) word: u64,
    pub(super) is_made: u64,
}
