//! The registers of a frame, and which of them are known.

use crate::arch::native::{self, COLUMNS, Link, RETURN_ADDRESS};
use crate::arch::{Abi, Native, Registers};

/// Registers, and which of them are known to hold this frame's values.
#[derive(Clone, Copy, Debug)]
pub struct Tracked {
    pub(crate) registers: Registers,
    known: u64,
}

impl From<&Registers> for Tracked {
    fn from(registers: &Registers) -> Self {
        Self { registers: *registers, known: (1 << COLUMNS) - 1 }
    }
}

impl Tracked {
    pub(crate) const NOTHING: Tracked = Tracked { registers: Registers::NOTHING, known: 0 };

    /// The value of the column with this DWARF number, if known.
    pub fn get(&self, number: usize) -> Option<u64> {
        if self.knows(number) { self.registers.column(number) } else { None }
    }

    pub(crate) fn knows(&self, number: usize) -> bool {
        number < COLUMNS && self.known >> number & 1 != 0
    }

    /// The program counter: a return address if the frame made a call, else the next instruction.
    pub fn pc(&self) -> u64 {
        self.registers.pc
    }

    /// Replaces these registers by the caller's. `pc` is where the caller continues, `value` gives the columns that are
    /// known, and `interrupted` says that the caller was interrupted instead of making a call.
    pub fn arrive_at(&mut self, pc: u64, interrupted: bool, value: impl Fn(usize) -> Option<u64>) {
        for number in 0..COLUMNS {
            match value(number) {
                Some(value) => self.set(number, value),
                None => self.forget(number),
            }
        }
        if Native::PUSHED_AT.is_some() {
            self.set(RETURN_ADDRESS, pc);
        } else if !interrupted {
            self.forget(RETURN_ADDRESS);
        }
        self.registers.pc = native::strip(pc);
    }

    /// Number of columns; their DWARF numbers start at 0.
    pub const COLUMNS: usize = COLUMNS;
    /// The column of the stack pointer.
    pub const SP: usize = native::SP;
    /// The column of the frame pointer.
    pub const FP: usize = native::FP;

    pub(crate) fn set(&mut self, number: usize, value: u64) {
        if number < COLUMNS {
            self.registers.set_column(number, value);
            self.known |= 1 << number;
        }
    }

    pub(crate) fn forget(&mut self, number: usize) {
        if number < COLUMNS {
            self.known &= !(1 << number);
        }
    }

    /// Makes the recovered return address the program counter. The link register is consumed by that.
    pub(crate) fn arrive(&mut self, interrupted: bool) {
        if let Some(address) = self.registers.column(RETURN_ADDRESS) {
            self.registers.pc = native::strip(address);
        }
        if Native::PUSHED_AT.is_none() && !interrupted {
            self.forget(RETURN_ADDRESS);
        }
    }

    /// The content of the link register.
    pub(crate) fn link(&self) -> Link {
        Link::new(self.get(RETURN_ADDRESS))
    }

    pub(crate) fn forget_all(&mut self) {
        self.known = 0;
    }
}
