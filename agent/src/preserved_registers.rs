//! The callee-saved registers, as the agent's assembly entries push them.

use handler::caller::Caller;

/// What `push!(rbp rbx r12 r13 r14 r15)` leaves on the stack at a function's first instruction.
#[repr(C)]
pub(crate) struct PreservedRegisters {
    /// r15, r14, r13, r12, rbx, rbp.
    registers: [u64; 6],
    return_address: u64,
}

impl PreservedRegisters {
    /// The caller of the function at `entry`.
    #[inline(always)]
    pub(crate) fn caller(&self, entry: u64) -> Caller<'_> {
        Caller { entry, stack_pointer: &raw const self.return_address as u64, preserved: &self.registers }
    }
}
