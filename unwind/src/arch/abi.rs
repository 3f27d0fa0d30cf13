//! What call frame information leaves to the architecture's ABI, as constants that its readers are compiled for.

use super::machine::Machine;
use crate::register_rule::Packed;
use crate::rule::{Rule, SavedFp};

/// An architecture, as readers of call frame information see it. Registers are DWARF numbers.
pub trait Abi: Copy + core::fmt::Debug + 'static {
    /// The machine.
    const MACHINE: Machine;
    /// The frame pointer.
    const FP: usize;
    /// The stack pointer.
    const SP: usize;
    /// The return address column: a column of its own, or the link register's.
    const RETURN_ADDRESS: usize;
    /// Where a call pushes the return address, in bytes from the CFA. `None`: calls leave it in the link register, and
    /// functions save it anywhere.
    const PUSHED_AT: Option<i32>;
    /// The column that `DW_CFA_AARCH64_negate_ra_state` toggles.
    const SIGN_STATE: Option<usize>;
    /// The rule at a function's first instruction.
    const ENTRY: Rule;
    /// One register rule per tracked column.
    type Columns: Copy + core::fmt::Debug + AsRef<[Packed]> + AsMut<[Packed]>;
    /// All columns without a rule.
    const NO_RULES: Self::Columns;

    /// The packed rule for this CFA expression and saved frame pointer, if one exists.
    fn by_cfa_expression(expression: &[u8], fp: SavedFp) -> Option<Rule>;

    /// Offset in bytes from the frame pointer to its saved value, if that is what the expression computes.
    fn fp_at_fp(expression: &[u8]) -> Option<i16>;
}
