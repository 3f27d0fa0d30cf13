//! A call of a mapping function: which one, and its arguments.

use handler::caller::Caller;

use crate::preserved_registers::PreservedRegisters;

/// Number of functions.
pub(super) const COUNT: usize = 4;

/// A call, as the interposed function pushes it on the stack.
#[repr(C)]
pub(super) struct Call {
    number: usize,
    pub(super) arguments: [u64; 6],
    preserved: PreservedRegisters,
}

/// The called function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Map,
    Unmap,
    Remap,
}

impl Call {
    /// Index in the table of real functions.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    pub(super) fn kind(&self) -> Kind {
        match self.number {
            0 | 1 => Kind::Map,
            2 => Kind::Unmap,
            _ => Kind::Remap,
        }
    }

    /// The calling function; `entry` is the address of the called one.
    pub(super) fn caller(&self, entry: u64) -> Caller<'_> {
        self.preserved.caller(entry)
    }
}
