//! Register rules (DWARF 5, 6.4.1): how a row recovers the caller's value of a register; and their four-byte form.

/// How to recover the caller's value of one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterRule {
    /// Unchanged, or without any rule.
    Same,
    /// Lost. For the return address: this is the outermost frame.
    Undefined,
    /// Saved at the CFA plus this many bytes.
    AtCfa(i32),
    /// The CFA plus this many bytes.
    CfaPlus(i32),
    /// In the register with this DWARF number.
    Register(u16),
    /// Saved at the address that the expression at this offset of the section computes.
    AtExpression(u32),
    /// The value of the expression at this offset of the section.
    Expression(u32),
    /// This constant.
    Constant(u32),
}

/// A [`RegisterRule`] in four bytes: three bits of kind, 29 bits of operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed(u32);

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

    pub(crate) fn constant(value: u32) -> Option<Packed> {
        Self::unsigned(7, u64::from(value))
    }

    pub(crate) fn unpack(self) -> RegisterRule {
        let signed = self.0 as i32 >> 3;
        let unsigned = self.0 >> 3;
        match self.0 & 7 {
            0 => RegisterRule::Same,
            1 => RegisterRule::Undefined,
            2 => RegisterRule::AtCfa(signed),
            3 => RegisterRule::CfaPlus(signed),
            4 => RegisterRule::Register(unsigned as u16),
            5 => RegisterRule::AtExpression(unsigned),
            6 => RegisterRule::Expression(unsigned),
            _ => RegisterRule::Constant(unsigned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn register_rules_round_trip() {
        for offset in [-(1 << 28), -8, 0, 8, (1 << 28) - 1] {
            assert_eq!(Packed::at_cfa(offset).unwrap().unpack(), RegisterRule::AtCfa(offset as i32));
            assert_eq!(Packed::cfa_plus(offset).unwrap().unpack(), RegisterRule::CfaPlus(offset as i32));
        }
        assert_eq!(Packed::at_cfa(1 << 28), None);
        assert_eq!(Packed::at_cfa(-(1 << 28) - 1), None);
        assert_eq!(Packed::register(16).unwrap().unpack(), RegisterRule::Register(16));
        assert_eq!(Packed::register(1 << 16), None);
        assert_eq!(Packed::at_expression(77).unwrap().unpack(), RegisterRule::AtExpression(77));
        assert_eq!(Packed::expression(77).unwrap().unpack(), RegisterRule::Expression(77));
        assert_eq!(Packed::expression(1 << 29), None);
        assert_eq!(Packed::constant(1).unwrap().unpack(), RegisterRule::Constant(1));
        assert_eq!(Packed::SAME.unpack(), RegisterRule::Same);
        assert_eq!(Packed::UNDEFINED.unpack(), RegisterRule::Undefined);
    }
}
