//! The callee-saved registers, as the agent's assembly entries push them.

use handler::caller::Caller;

/// What `push!(rbp rbx r12 r13 r14 r15)` leaves on the stack at a function's first instruction.
#[repr(C)]
pub(crate) struct PreservedRegisters {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    rbx: u64,
    rbp: u64,
    return_address: u64,
}

impl PreservedRegisters {
    /// The caller of the function at `entry`.
    pub(crate) fn caller(&self, entry: u64) -> Caller {
        Caller {
            entry,
            stack_pointer: &raw const self.return_address as u64,
            preserved: [self.rbx, self.rbp, self.r12, self.r13, self.r14, self.r15],
        }
    }
}
