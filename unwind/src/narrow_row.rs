//! The columns that decide whether a row has a packed rule, and the packing.
//!
//! Only those DWARF expressions are recognised that linkers and compilers emit in large numbers: on x86-64, PLT stubs,
//! and a CFA or frame pointer saved on the stack.

use core::marker::PhantomData;

use crate::arch::Abi;
use crate::cursor::block;
use crate::frame_row::{Cfa, CfaColumn, Row};
use crate::register_rule::{Packed, RegisterRule};
use crate::rule::{Kind, ReturnAddress, Rule, SavedFp};

/// A row of the fast path: the CFA and the columns that decide whether its rule can be packed.
#[derive(Clone, Copy)]
pub(crate) struct NarrowRow<A> {
    cfa: CfaColumn,
    fp: Packed,
    sp: Packed,
    return_address: Packed,
    abi: PhantomData<A>,
}

impl<A: Abi> Row for NarrowRow<A> {
    const EMPTY: Self = NarrowRow {
        cfa: CfaColumn::EMPTY,
        fp: Packed::SAME,
        sp: Packed::SAME,
        return_address: Packed::SAME,
        abi: PhantomData,
    };

    fn cfa_mut(&mut self) -> &mut CfaColumn {
        &mut self.cfa
    }

    fn get(&self, register: u64) -> Packed {
        match register as usize {
            number if number == A::FP => self.fp,
            number if number == A::SP => self.sp,
            number if number == A::RETURN_ADDRESS => self.return_address,
            _ => Packed::SAME,
        }
    }

    fn set(&mut self, register: u64, register_rule: Packed) {
        match register as usize {
            number if number == A::FP => self.fp = register_rule,
            number if number == A::SP => self.sp = register_rule,
            number if number == A::RETURN_ADDRESS => self.return_address = register_rule,
            _ => {}
        }
    }

    // Not tracked: signatures are stripped from every return address.
    fn negate_sign_state(&mut self) {}
}

impl<A: Abi> NarrowRow<A> {
    /// The packed rule. `section` holds the row's expressions.
    pub(crate) fn rule(&self, section: &[u8], signal: bool) -> Rule {
        let return_address = match self.return_address.unpack() {
            RegisterRule::Undefined => return Rule::ROOT.with_signal(signal),
            // The return address was never saved: the outermost frame.
            RegisterRule::Same if A::PUSHED_AT.is_some() => return Rule::ROOT.with_signal(signal),
            register_rule => return_address::<A>(register_rule),
        };
        match return_address {
            Some(return_address) if !signal && self.sp == Packed::SAME => {
                let placed = |rule: Rule| match A::PUSHED_AT {
                    Some(_) => rule,
                    None => rule.with_return_address(return_address),
                };
                self.packed(section).map_or(Rule::COMPLEX, placed)
            }
            _ => Rule::COMPLEX.with_signal(signal),
        }
    }

    fn packed(&self, section: &[u8]) -> Option<Rule> {
        let fp = match self.fp.unpack() {
            RegisterRule::Same => SavedFp::Same,
            RegisterRule::AtCfa(offset) => SavedFp::AtCfa(i16::try_from(offset).ok()?),
            RegisterRule::AtExpression(position) => SavedFp::AtFp(A::fp_at_fp(block(section, position)?)?),
            _ => return None,
        };
        match self.cfa.rule() {
            Cfa::Register { register, offset } => match usize::from(register) {
                number if number == A::SP => Rule::new(Kind::Sp, offset, 0, fp),
                number if number == A::FP => Rule::new(Kind::Fp, offset, 0, fp),
                _ => None,
            },
            Cfa::Expression(position) => A::by_cfa_expression(block(section, position)?, fp),
            Cfa::Unset => None,
        }
    }
}

/// Where the return address is, if a packed rule can express it.
fn return_address<A: Abi>(register_rule: RegisterRule) -> Option<ReturnAddress> {
    match (register_rule, A::PUSHED_AT) {
        (RegisterRule::AtCfa(offset), Some(pushed)) if offset != pushed => None,
        (RegisterRule::AtCfa(offset), _) => Some(ReturnAddress::AtCfa(i16::try_from(offset).ok()?)),
        (RegisterRule::Same, None) => Some(ReturnAddress::InRegister),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{Aarch64, X86_64};

    fn row(cfa: Cfa) -> NarrowRow<X86_64> {
        let cfa = match cfa {
            Cfa::Register { register, offset } => CfaColumn { register, offset, expression: 0 },
            Cfa::Expression(position) => CfaColumn { expression: position, ..CfaColumn::EMPTY },
            Cfa::Unset => CfaColumn::EMPTY,
        };
        NarrowRow { cfa, return_address: Packed::at_cfa(-8).unwrap(), ..NarrowRow::EMPTY }
    }

    fn by_expression(expression: &[u8]) -> Rule {
        let mut section = [0; 32];
        section[1] = expression.len() as u8;
        section[2..expression.len() + 2].copy_from_slice(expression);
        row(Cfa::Expression(1)).rule(&section, false)
    }

    #[test]
    fn simple_rows_are_packed() {
        let rule = row(Cfa::Register { register: 7, offset: 24 }).rule(&[], false);
        assert_eq!((rule.kind(), rule.offset(), rule.fp()), (Kind::Sp, 24, SavedFp::Same));
        let mut saved = row(Cfa::Register { register: 6, offset: 16 });
        saved.fp = Packed::at_cfa(-16).unwrap();
        let rule = saved.rule(&[], false);
        assert_eq!((rule.kind(), rule.offset(), rule.fp()), (Kind::Fp, 16, SavedFp::AtCfa(-16)));
    }

    #[test]
    fn known_expressions_are_packed() {
        let plt = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        assert_eq!(by_expression(&plt), Rule::new(Kind::Plt, 8, 11, SavedFp::Same).unwrap());
        let loaded = [0x77, 0xc0, 0, 0x06, 0x23, 8];
        assert_eq!(by_expression(&loaded), Rule::new(Kind::SpMemory, 64, 8, SavedFp::Same).unwrap());
        let padded = [0x77, 0xc0, 0x80, 0x00, 0x06, 0x23, 0x88, 0x80, 0x00];
        assert_eq!(by_expression(&padded), by_expression(&loaded));
        let realigned = [0x76, 0x78, 0x06];
        assert_eq!(by_expression(&realigned), Rule::new(Kind::FpMemory, -8, 0, SavedFp::Same).unwrap());
    }

    #[test]
    fn everything_else_is_complex() {
        assert_eq!(row(Cfa::Register { register: 3, offset: 16 }).rule(&[], false), Rule::COMPLEX);
        assert_eq!(row(Cfa::Unset).rule(&[], false), Rule::COMPLEX);
        assert_eq!(by_expression(&[0x77, 8, 0x06, 0x06]), Rule::COMPLEX);
        assert_eq!(by_expression(&[]), Rule::COMPLEX);
        let simple = Cfa::Register { register: 7, offset: 8 };
        let signal = row(simple).rule(&[], true);
        assert_eq!((signal.kind(), signal.is_signal_frame()), (Kind::Complex, true));
        for change in [
            |row: &mut NarrowRow<X86_64>| row.sp = Packed::cfa_plus(-8).unwrap(),
            |row: &mut NarrowRow<X86_64>| row.fp = Packed::UNDEFINED,
            |row: &mut NarrowRow<X86_64>| row.fp = Packed::at_cfa(-65536).unwrap(),
            |row: &mut NarrowRow<X86_64>| row.return_address = Packed::at_cfa(-16).unwrap(),
            |row: &mut NarrowRow<X86_64>| row.return_address = Packed::register(0).unwrap(),
        ] {
            let mut changed = row(simple);
            change(&mut changed);
            assert_eq!(changed.rule(&[], false), Rule::COMPLEX);
        }
    }

    #[test]
    fn an_undefined_return_address_is_the_root() {
        let mut outermost = row(Cfa::Register { register: 7, offset: 8 });
        outermost.return_address = Packed::UNDEFINED;
        assert_eq!(outermost.rule(&[], false), Rule::ROOT);
    }

    #[test]
    fn aarch64_says_where_the_return_address_is() {
        let mut row = NarrowRow::<Aarch64>::EMPTY;
        row.cfa = CfaColumn { register: 31, offset: 0, expression: 0 };
        assert_eq!(row.rule(&[], false), Rule::ENTRY_LINKED);
        row.cfa.offset = 96;
        row.set(29, Packed::at_cfa(-96).unwrap());
        row.set(30, Packed::at_cfa(-88).unwrap());
        let rule = row.rule(&[], false);
        assert_eq!((rule.kind(), rule.offset(), rule.fp()), (Kind::Sp, 96, SavedFp::AtCfa(-96)));
        assert_eq!(rule.return_address(), ReturnAddress::AtCfa(-88));
        row.cfa.register = 29;
        let by_fp = row.rule(&[], false);
        assert_eq!((by_fp.kind(), by_fp.offset(), by_fp.fp()), (Kind::Fp, 96, rule.fp()));
        row.set(30, Packed::at_cfa(-40_000).unwrap());
        assert_eq!(row.rule(&[], false), Rule::COMPLEX);
        row.set(30, Packed::register(3).unwrap());
        assert_eq!(row.rule(&[], false), Rule::COMPLEX);
        row.set(30, Packed::UNDEFINED);
        assert_eq!(row.rule(&[], false), Rule::ROOT);
    }
}
