//! Every CFA instruction, one by one.

use std::vec::Vec;

use crate::arch::X86_64;
use crate::cfi::{self, CfiEntry};
use crate::fixture::{EhFrame, LENGTH, START, one};
use crate::frame_row::{Cfa, FrameRow};
use crate::register_rule::RegisterRule;

type Fde<'a> = cfi::Fde<'a, X86_64>;

const SP_8: Cfa = Cfa::Register { register: 7, offset: 8 };

fn fde(made: &EhFrame) -> Fde<'_> {
    let section = made.section();
    let extent = cfi::entries(section).find(|extent| extent.entry != CfiEntry::Cie).unwrap();
    Fde::at(&section, extent.offset).unwrap()
}

/// The last row of the program.
fn last(code: &[u8]) -> Option<FrameRow<X86_64>> {
    fde(&one(code)).row_at(START + LENGTH - 1)
}

fn cfa(code: &[u8]) -> Cfa {
    last(code).unwrap().cfa()
}

fn rbx(code: &[u8]) -> RegisterRule {
    last(code).unwrap().register_rule(3)
}

#[test]
fn without_instructions_the_initial_rules_apply() {
    let row = last(&[]).unwrap();
    assert_eq!(row.cfa(), SP_8);
    assert_eq!(row.register_rule(16), RegisterRule::AtCfa(-8));
    assert_eq!(row.register_rule(3), RegisterRule::Same);
    assert_eq!(row.register_rule(99), RegisterRule::Same);
}

#[test]
fn cfa_instructions() {
    assert_eq!(cfa(&[0x0c, 6, 16]), Cfa::Register { register: 6, offset: 16 });
    assert_eq!(cfa(&[0x12, 6, 0x7e]), Cfa::Register { register: 6, offset: 16 });
    assert_eq!(cfa(&[0x0d, 6]), Cfa::Register { register: 6, offset: 8 });
    assert_eq!(cfa(&[0x0e, 0x90, 1]), Cfa::Register { register: 7, offset: 144 });
    assert_eq!(cfa(&[0x13, 0x7d]), Cfa::Register { register: 7, offset: 24 });
    let made = one(&[0x0f, 2, 0x77, 8]);
    let Cfa::Expression(position) = fde(&made).row_at(START).unwrap().cfa() else { panic!("no expression") };
    assert_eq!(fde(&made).expression(position), Some(&[0x77, 8][..]));
}

#[test]
fn a_register_comes_back_after_an_expression() {
    assert_eq!(cfa(&[0x0e, 56, 0x0f, 2, 0x77, 8, 0x0d, 7]), Cfa::Register { register: 7, offset: 56 });
    assert!(matches!(cfa(&[0x0f, 2, 0x77, 8, 0x0e, 56]), Cfa::Expression(_)));
}

#[test]
fn register_instructions() {
    assert_eq!(rbx(&[0x83, 2]), RegisterRule::AtCfa(-16));
    assert_eq!(rbx(&[0x05, 3, 2]), RegisterRule::AtCfa(-16));
    assert_eq!(rbx(&[0x11, 3, 0x7e]), RegisterRule::AtCfa(16));
    assert_eq!(rbx(&[0x2f, 3, 2]), RegisterRule::AtCfa(16));
    assert_eq!(rbx(&[0x14, 3, 2]), RegisterRule::CfaPlus(-16));
    assert_eq!(rbx(&[0x15, 3, 0x7e]), RegisterRule::CfaPlus(16));
    assert_eq!(rbx(&[0x09, 3, 12]), RegisterRule::Register(12));
    assert_eq!(rbx(&[0x07, 3]), RegisterRule::Undefined);
    assert_eq!(rbx(&[0x83, 2, 0x08, 3]), RegisterRule::Same);
    assert_eq!(rbx(&[0x83, 2, 0xc3]), RegisterRule::Same);
    assert_eq!(rbx(&[0x83, 2, 0x06, 3]), RegisterRule::Same);
    assert!(matches!(rbx(&[0x10, 3, 1, 0x30]), RegisterRule::AtExpression(_)));
    assert!(matches!(rbx(&[0x16, 3, 1, 0x30]), RegisterRule::Expression(_)));
    assert_eq!(rbx(&[0x00, 0x2e, 0x90, 1, 0x83, 2]), RegisterRule::AtCfa(-16));
    let restored = last(&[0x90, 5, 0xd0]).unwrap();
    assert_eq!(restored.register_rule(16), RegisterRule::AtCfa(-8));
}

#[test]
fn rules_for_untracked_columns_are_ignored() {
    assert_eq!(rbx(&[0x91, 2, 0x05, 0xff, 1, 2, 0x07, 40, 0x83, 2]), RegisterRule::AtCfa(-16));
}

#[test]
fn remembered_states_nest() {
    let nested = [0x0a, 0x0e, 16, 0x0a, 0x0e, 24, 0x83, 2, 0x0b];
    assert_eq!(cfa(&nested), Cfa::Register { register: 7, offset: 16 });
    assert_eq!(rbx(&nested), RegisterRule::Same);
    let mut outer = Vec::from(nested);
    outer.push(0x0b);
    assert_eq!(cfa(&outer), SP_8);
    assert!(last(&[0x0a; 4]).is_some());
    assert!(last(&[0x0a; 64]).is_none());
    assert!(last(&[0x0b]).is_none());
}

#[test]
fn locations() {
    let set_loc = |target: u64, at: usize| {
        let field = crate::fixture::ADDRESS + at as u64;
        (target.wrapping_sub(field) as u32).to_le_bytes()
    };
    // 0x44: advance 4, 02: advance 0x10, 03: advance 0x100, 04: advance 0x200.
    let code = [0x44, 0x0e, 16, 0x02, 0x10, 0x0e, 24, 0x03, 0, 1, 0x0e, 32, 0x04, 0, 2, 0, 0, 0x0e, 40];
    let made = one(&code);
    let mut rows = Vec::new();
    fde(&made).rows(|from, to, row| rows.push((from - START, to - START, row.cfa()))).unwrap();
    let at = |offset| Cfa::Register { register: 7, offset };
    let expected = [
        (0, 4, at(8)),
        (4, 0x14, at(16)),
        (0x14, 0x114, at(24)),
        (0x114, 0x314, at(32)),
        (0x314, LENGTH, at(40)),
    ];
    assert_eq!(rows, expected);
    for (from, to, cfa) in expected {
        for address in [from, to - 1] {
            assert_eq!(fde(&made).row_at(START + address).unwrap().cfa(), cfa);
            let Cfa::Register { offset, .. } = cfa else { unreachable!() };
            assert_eq!(fde(&made).rule_at(START + address).unwrap().offset(), offset);
        }
    }
    // The encoding of set_loc's operand is the CIE's pointer encoding, so it is relative to its own position.
    let operand_at = one(&[]).bytes.len() - 4 - 3 + 1;
    let mut code = Vec::from([0x01]);
    code.extend(set_loc(START + 0x40, operand_at));
    code.extend([0x0e, 16]);
    let made = one(&code);
    assert_eq!(fde(&made).row_at(START + 0x3f).unwrap().cfa(), at(8));
    assert_eq!(fde(&made).row_at(START + 0x40).unwrap().cfa(), at(16));
    let mut back = Vec::from([0x01]);
    back.extend(set_loc(START - 1, operand_at));
    assert!(last(&back).is_none());
}

#[test]
fn malformed_programs_are_refused() {
    let cases: [&[u8]; 10] = [
        &[0x3f],                                                             // unknown
        &[0x1d],                                                             // MIPS
        &[0x2d],                                                             // SPARC, AArch64
        &[0x0c, 7],                                                          // operand missing
        &[0x0f, 0x7f],                                                       // block too long
        &[0x04, 0xff, 0xff],                                                 // operand cut off
        &[0x0e, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],    // offset too large
        &[0x83, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],    // factored too large
        &[0x13, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x7f], // overflows
        &[0x0d, 0xff, 0xff, 0x03],                                           // not a register
    ];
    for code in cases {
        // The program must be last in the section: padding would complete a truncated operand.
        let mut made = EhFrame::new();
        let cie = made.usual_cie();
        let mut padded = Vec::from(code);
        while (9 + padded.len()) % 4 != 0 {
            padded.insert(0, 0);
        }
        made.fde(cie, START, LENGTH, &padded);
        assert!(fde(&made).row_at(START).is_none(), "{code:x?}");
        assert!(fde(&made).rule_at(START).is_none(), "{code:x?}");
    }
}
