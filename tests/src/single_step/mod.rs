//! The single-step oracle: after every instruction of a program, the stack the unwinder finds must equal
//! the shadow stack kept from the program's own calls and returns.
//!
//! The two sides share nothing: the shadow stack knows no CFI, the unwinder knows no history. A difference
//! is a defect of one of them and is reported with the instruction, its symbol and both stacks.

pub mod image;
pub mod instruction;
pub mod oracle;
pub mod shadow;
pub mod stepper;
pub mod tracee;
pub mod walker;
