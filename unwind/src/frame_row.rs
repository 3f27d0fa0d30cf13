//! A row with the rules of all registers, for steps with all registers.

use crate::arch::{Abi, Native};
use crate::register_rule::{Packed, RegisterRule};

/// How to compute the canonical frame address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cfa {
    /// Not given: the call frame information is malformed.
    Unset,
    /// The register with this DWARF number, plus an offset in bytes.
    Register {
        /// DWARF number.
        register: u16,
        /// Bytes.
        offset: i32,
    },
    /// The DWARF expression whose length (ULEB128) is at this offset of the section.
    Expression(u32),
}

/// The CFA column. An expression does not discard the register and offset: as in libgcc, `def_cfa_register` returns to
/// them, on which libgcrypt's assembly relies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CfaColumn {
    pub(crate) register: u16,
    pub(crate) offset: i32,
    /// Offset of the expression in the section; 0 for none, since no expression can start there.
    pub(crate) expression: u32,
}

impl CfaColumn {
    const UNSET: u16 = u16::MAX;
    pub(crate) const EMPTY: Self = CfaColumn { register: Self::UNSET, offset: 0, expression: 0 };

    pub(crate) fn rule(&self) -> Cfa {
        match (self.expression, self.register) {
            (0, Self::UNSET) => Cfa::Unset,
            (0, register) => Cfa::Register { register, offset: self.offset },
            (position, _) => Cfa::Expression(position),
        }
    }
}

/// The result of a CFA program: the CFA, and those columns that the caller needs.
pub(crate) trait Row: Copy {
    /// Without any rule.
    const EMPTY: Self;

    fn cfa_mut(&mut self) -> &mut CfaColumn;
    /// The rule of a column; [`Packed::SAME`] for columns that are not kept.
    fn get(&self, register: u64) -> Packed;
    /// Stores the rule, if this column is kept.
    fn set(&mut self, register: u64, register_rule: Packed);
    /// Toggles the column that says whether the return address is signed, if it is kept.
    fn negate_sign_state(&mut self);
}

/// One row: the CFA and the rules of all general registers and the return address, by DWARF number.
#[derive(Clone, Copy, Debug)]
pub struct FrameRow<A: Abi = Native> {
    cfa: CfaColumn,
    columns: A::Columns,
}

impl<A: Abi> FrameRow<A> {
    /// Number of columns kept.
    pub fn columns(&self) -> usize {
        self.columns.as_ref().len()
    }

    /// The rule of the register with this DWARF number, which must be below [`columns`](Self::columns).
    pub fn register_rule(&self, register: usize) -> RegisterRule {
        self.columns.as_ref().get(register).map_or(RegisterRule::Same, |packed| packed.unpack())
    }

    /// How to compute the CFA.
    pub fn cfa(&self) -> Cfa {
        self.cfa.rule()
    }
}

impl<A: Abi> Row for FrameRow<A> {
    const EMPTY: Self = FrameRow { cfa: CfaColumn::EMPTY, columns: A::NO_RULES };

    fn cfa_mut(&mut self) -> &mut CfaColumn {
        &mut self.cfa
    }

    fn get(&self, register: u64) -> Packed {
        let column = usize::try_from(register).ok().and_then(|register| self.columns.as_ref().get(register));
        column.copied().unwrap_or(Packed::SAME)
    }

    fn set(&mut self, register: u64, register_rule: Packed) {
        if let Some(column) =
            usize::try_from(register).ok().and_then(|register| self.columns.as_mut().get_mut(register))
        {
            *column = register_rule;
        }
    }

    fn negate_sign_state(&mut self) {
        let Some(column) = A::SIGN_STATE else { return };
        let was = match self.register_rule(column) {
            RegisterRule::Same => 0,
            RegisterRule::Constant(was) => was,
            _ => return,
        };
        if let (Some(column), Some(is)) = (self.columns.as_mut().get_mut(column), Packed::constant(was ^ 1)) {
            *column = is;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{Aarch64, X86_64};

    #[test]
    fn rows_are_small() {
        // The handler's stack holds several of these.
        assert!(size_of::<FrameRow<X86_64>>() <= 80, "{}", size_of::<FrameRow<X86_64>>());
        assert!(size_of::<FrameRow<Aarch64>>() <= 152, "{}", size_of::<FrameRow<Aarch64>>());
    }
}
