//! A call of an allocating function: which one, what it asks for, and what it got.

use handler::caller::Caller;

use crate::preserved_registers::PreservedRegisters;

/// Which function was called, as an index into the tables of functions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind(pub(super) usize);

impl Kind {
    const REALLOC: Kind = Kind(2);
    const REALLOCARRAY: Kind = Kind(3);

    /// Whether the function gives up another block.
    pub(super) fn resizes(self) -> bool {
        self == Self::REALLOC || self == Self::REALLOCARRAY
    }
}

/// A call of an allocating function, as the interposed function lays it out on the stack.
#[repr(C)]
pub(super) struct Call {
    kind: usize,
    arguments: [u64; 3],
    preserved: PreservedRegisters,
}

impl Call {
    pub(super) fn kind(&self) -> Kind {
        Kind(self.kind)
    }

    /// The block that the call gives up for the new one.
    pub(super) fn given_up(&self) -> u64 {
        if self.kind().resizes() { self.arguments[0] } else { 0 }
    }

    /// Requested bytes.
    pub(super) fn size(&self) -> u64 {
        let [first, second, third] = self.arguments;
        match self.kind {
            1 => first.saturating_mul(second),
            2 | 4 | 5 => second,
            3 => second.saturating_mul(third),
            6 => third,
            _ => first,
        }
    }

    /// The allocated block, derived from the function's result; 0 if there is none.
    pub(super) fn block(&self, result: u64) -> u64 {
        const POSIX_MEMALIGN: usize = 6;
        match (self.kind, result) {
            // SAFETY: on success posix_memalign(3) has stored the block where its first argument says.
            (POSIX_MEMALIGN, 0) => unsafe { (self.arguments[0] as *const u64).read() },
            (POSIX_MEMALIGN, _) => 0,
            _ => result,
        }
    }

    /// The caller; `entry` is the address of the called function.
    pub(super) fn caller(&self, entry: u64) -> Caller<'_> {
        self.preserved.caller(entry)
    }
}
