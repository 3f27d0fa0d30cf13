//! Where a walk starts.

use crate::arch::Registers;

/// The innermost frame. Most walks need no other registers than these.
#[derive(Clone, Copy)]
pub struct Leaf<'a> {
    /// The address of the next instruction.
    pub pc: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer.
    pub fp: u64,
    /// All registers, for a walk that needs another one.
    pub all: &'a dyn Fn() -> Registers,
}

impl<'a> Leaf<'a> {
    /// The frame with the registers that `all` returns.
    pub fn of(all: &'a dyn Fn() -> Registers) -> Self {
        let registers = all();
        Self { pc: registers.pc, sp: registers.sp(), fp: registers.fp(), all }
    }
}
