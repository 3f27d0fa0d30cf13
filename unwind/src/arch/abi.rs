//! What call frame information leaves to an architecture's ABI, as constants that its readers are compiled with.

use super::machine::Machine;
use crate::register_rule::Packed;
use crate::rule::{Rule, SavedFp};

/// An architecture, to the readers of call frame information. Registers go by their DWARF numbers.
pub trait Abi: Copy + core::fmt::Debug + 'static {
    /// Which one.
    const MACHINE: Machine;
    /// The frame pointer.
    const FP: usize;
    /// The stack pointer.
    const SP: usize;
    /// The column of the return address: one of its own, or the link register's.
    const RETURN_ADDRESS: usize;
    /// Where a call leaves the return address, in bytes from the CFA. `None`: in the link register, from where functions
    /// save it anywhere.
    const PUSHED_AT: Option<i32>;
    /// The column that `DW_CFA_AARCH64_negate_ra_state` negates.
    const SIGN_STATE: Option<usize>;
    /// The rule of a function's first instruction.
    const ENTRY: Rule;
    /// A register rule for each column that any are kept for.
    type Columns: Copy + core::fmt::Debug + AsRef<[Packed]> + AsMut<[Packed]>;
    /// No rule for any column.
    const NO_RULES: Self::Columns;

    /// The rule with this CFA expression and the frame pointer there, if it can be packed.
    fn by_cfa_expression(expression: &[u8], fp: SavedFp) -> Option<Rule>;

    /// Bytes from the frame pointer to where it was saved, if that is what the expression says.
    fn fp_at_fp(expression: &[u8]) -> Option<i16>;
}
