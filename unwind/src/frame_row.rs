//! A row with the recovery of every register: what the exact evaluation works on.

use crate::program::Row;
use crate::x86_64::COLUMNS;

/// How to compute the canonical frame address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cfa {
    /// No rule was given: the information is malformed.
    Unset,
    /// The register with this DWARF number, plus an offset in bytes.
    Register {
        /// DWARF number.
        register: u16,
        /// Bytes.
        offset: i32,
    },
    /// The DWARF expression whose length (ULEB128) stands at this offset of the section.
    Expression(u32),
}

/// The CFA's column. A register and offset stay behind an expression, as in libgcc: `def_cfa_register` goes back to them
/// (libgcrypt's assembly relies on it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CfaColumn {
    pub(crate) register: u16,
    pub(crate) offset: i32,
    /// Offset of the expression in the section, 0 for none: no expression can stand there.
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

/// How to recover the caller's value of one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// It is unchanged, or nothing was said about it.
    Same,
    /// It is lost; for the return address: this is the outermost frame.
    Undefined,
    /// It is saved at the CFA plus these bytes.
    AtCfa(i32),
    /// It is the CFA plus these bytes.
    CfaPlus(i32),
    /// It is in the register with this DWARF number.
    Register(u16),
    /// It is saved at the address that the expression at this offset of the section computes.
    AtExpression(u32),
    /// It is the value that the expression at this offset of the section computes.
    Expression(u32),
}

/// A [`Recovery`] in four bytes: three bits of kind, 29 of operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed(u32);

impl Packed {
    pub(crate) const SAME: Packed = Packed(0);
    pub(crate) const UNDEFINED: Packed = Packed(1);

    fn signed(kind: u32, operand: i64) -> Option<Packed> {
        let fits = (-(1 << 28)..1 << 28).contains(&operand);
        fits.then_some(Packed((operand as u32) << 3 | kind))
    }

    fn unsigned(kind: u32, operand: u64) -> Option<Packed> {
        (operand < 1 << 29).then_some(Packed((operand as u32) << 3 | kind))
    }

    pub(crate) fn at_cfa(offset: i64) -> Option<Packed> {
        Self::signed(2, offset)
    }

    pub(crate) fn cfa_plus(offset: i64) -> Option<Packed> {
        Self::signed(3, offset)
    }

    pub(crate) fn register(number: u64) -> Option<Packed> {
        Self::unsigned(4, u64::from(u16::try_from(number).ok()?))
    }

    pub(crate) fn at_expression(position: usize) -> Option<Packed> {
        Self::unsigned(5, position as u64)
    }

    pub(crate) fn expression(position: usize) -> Option<Packed> {
        Self::unsigned(6, position as u64)
    }

    pub(crate) fn unpack(self) -> Recovery {
        let signed = self.0 as i32 >> 3;
        let unsigned = self.0 >> 3;
        match self.0 & 7 {
            0 => Recovery::Same,
            2 => Recovery::AtCfa(signed),
            3 => Recovery::CfaPlus(signed),
            4 => Recovery::Register(unsigned as u16),
            5 => Recovery::AtExpression(unsigned),
            6 => Recovery::Expression(unsigned),
            _ => Recovery::Undefined,
        }
    }
}

/// The rules of one row for the CFA, all general registers and the return address.
#[derive(Clone, Copy, Debug)]
pub struct FrameRow {
    cfa: CfaColumn,
    columns: [Packed; COLUMNS],
}

impl FrameRow {
    /// How to recover the register with this DWARF number. Registers beyond the return address are not kept.
    pub fn recovery(&self, register: usize) -> Recovery {
        self.columns.get(register).map_or(Recovery::Same, |packed| packed.unpack())
    }

    /// How to compute the CFA.
    pub fn cfa(&self) -> Cfa {
        self.cfa.rule()
    }
}

impl Row for FrameRow {
    const EMPTY: Self = FrameRow { cfa: CfaColumn::EMPTY, columns: [Packed::SAME; COLUMNS] };

    fn cfa_mut(&mut self) -> &mut CfaColumn {
        &mut self.cfa
    }

    fn get(&self, register: u64) -> Packed {
        let column = usize::try_from(register).ok().and_then(|register| self.columns.get(register));
        column.copied().unwrap_or(Packed::SAME)
    }

    fn set(&mut self, register: u64, recovery: Packed) {
        if let Some(column) =
            usize::try_from(register).ok().and_then(|register| self.columns.get_mut(register))
        {
            *column = recovery;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recoveries_come_back() {
        for offset in [-(1 << 28), -8, 0, 8, (1 << 28) - 1] {
            assert_eq!(Packed::at_cfa(offset).unwrap().unpack(), Recovery::AtCfa(offset as i32));
            assert_eq!(Packed::cfa_plus(offset).unwrap().unpack(), Recovery::CfaPlus(offset as i32));
        }
        assert_eq!(Packed::at_cfa(1 << 28), None);
        assert_eq!(Packed::at_cfa(-(1 << 28) - 1), None);
        assert_eq!(Packed::register(16).unwrap().unpack(), Recovery::Register(16));
        assert_eq!(Packed::register(1 << 16), None);
        assert_eq!(Packed::at_expression(77).unwrap().unpack(), Recovery::AtExpression(77));
        assert_eq!(Packed::expression(77).unwrap().unpack(), Recovery::Expression(77));
        assert_eq!(Packed::expression(1 << 29), None);
        assert_eq!(Packed::SAME.unpack(), Recovery::Same);
        assert_eq!(Packed::UNDEFINED.unpack(), Recovery::Undefined);
    }

    #[test]
    fn rows_are_small() {
        // Several of these live on the handler's stack.
        assert!(size_of::<FrameRow>() <= 80, "{}", size_of::<FrameRow>());
    }
}
