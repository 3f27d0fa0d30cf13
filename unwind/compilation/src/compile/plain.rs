//! Fast interpreter for the programs of nearly all functions, whose rows are plain rules: the CFA relative to the stack
//! or frame pointer, the frame pointer unchanged or saved relative to the CFA.
//!
//! Each instruction edits the packed rule in place. On anything else it gives up and
//! [`Reader::rules`](unwind::cfi::Reader::rules), which handles everything, starts over. Where this one completes, both give the
//! same rows; `verify` checks that.

use unwind::cfi::Cie;
use unwind::{Abi, Kind, ReturnAddress, Rule};

use super::rows::Rows;

/// Supported nesting depth of `remember_state`.
const DEPTH: usize = 8;
/// Lowest value of a byte with the LEB128 continuation bit.
const LONG: u8 = 0x80;

/// Pushes the rows of the function `start..end`, relative to the base of `rows`. `None` if its `code` contains anything
/// that this interpreter does not handle; some rows may have been pushed by then.
pub(super) fn push_rows<A: Abi>(
    rows: &mut Rows,
    cie: &Cie<A>,
    initial: Rule,
    code: &[u8],
    start: u64,
    end: u64,
) -> Option<()> {
    let step = u64::from(cie.code_alignment);
    // Times a one-byte operand, a 16-bit factor stays within the range of every kind of row.
    let factor = i32::from(i16::try_from(cie.data_alignment).ok()?);
    let (mut rule, mut location, mut at) = (initial, start, 0);
    let mut saved = [initial; DEPTH];
    let mut depth = 0usize;
    while let Some(&opcode) = code.get(at) {
        let operand = code.get(at + 1).copied().unwrap_or(LONG);
        at += 1;
        let distance = match opcode {
            0x40..0x80 => u64::from(opcode & 0x3f), // advance_loc
            0x0e if operand < LONG => {
                rule = rule.with_offset(u32::from(operand))?; // def_cfa_offset
                at += 1;
                continue;
            }
            0x80..0xc0 if operand < LONG => {
                // offset
                rule = saved_at::<A>(rule, opcode & 0x3f, i32::from(operand) * factor)?;
                at += 1;
                continue;
            }
            0xc0.. => {
                // restore
                let register = usize::from(opcode & 0x3f);
                if register == A::FP {
                    rule = rule.with_fp_of(initial);
                } else if register == A::RETURN_ADDRESS && A::PUSHED_AT.is_none() {
                    rule = rule.with_return_address_of(initial);
                }
                continue;
            }
            0x00 => continue, // nop
            0x0a => {
                *saved.get_mut(depth)? = rule; // remember_state
                depth += 1;
                continue;
            }
            0x0b => {
                depth = depth.checked_sub(1)?; // restore_state
                rule = *saved.get(depth)?;
                continue;
            }
            0x02..=0x04 => {
                let size = 1 << (opcode - 2); // advance_loc1, 2, 4
                let distance = code.get(at..at + size)?;
                at += size;
                distance.iter().rev().fold(0, |distance, &byte| distance << 8 | u64::from(byte))
            }
            _ => {
                let mut rest = code.get(at..)?;
                rule = seldom::<A>(rule, opcode, factor, &mut rest)?;
                at = code.len() - rest.len();
                continue;
            }
        };
        let next = location.checked_add(distance.checked_mul(step)?)?;
        if next > location {
            rows.push(location, rule);
        }
        if next >= end {
            return Some(());
        }
        location = next;
    }
    rows.push(location, rule);
    Some(())
}

/// `rule` with `register` saved `offset` bytes from the CFA.
#[inline]
fn saved_at<A: Abi>(rule: Rule, register: u8, offset: i32) -> Option<Rule> {
    match usize::from(register) {
        number if number == A::FP => Some(rule.with_fp_at_cfa(i16::try_from(offset).ok()?)),
        number if number == A::RETURN_ADDRESS => match A::PUSHED_AT {
            Some(pushed) => (offset == pushed).then_some(rule),
            None => Some(rule.with_return_address(ReturnAddress::AtCfa(i16::try_from(offset).ok()?))),
        },
        number if number == A::SP => None,
        _ => Some(rule),
    }
}

/// `rule` after one of the rarer instructions (less than one per function).
#[inline(never)]
fn seldom<A: Abi>(rule: Rule, opcode: u8, factor: i32, code: &mut &[u8]) -> Option<Rule> {
    match opcode {
        0x0c => rule.with_kind(kind_of::<A>(uleb(code)?)?).with_offset(uleb(code)?), // def_cfa
        0x0d => Some(rule.with_kind(kind_of::<A>(uleb(code)?)?)),                    // def_cfa_register
        0x0e => rule.with_offset(uleb(code)?),                                       // def_cfa_offset
        0x2d if A::SIGN_STATE.is_some() => Some(rule), // AARCH64_negate_ra_state
        0x2e => uleb(code).map(|_| rule),              // GNU_args_size: of interest to landing pads only
        0x80..0xc0 => {
            // What does not fit the full interpreter's rows must be refused here too.
            let offset = i64::from(uleb(code)?) * i64::from(factor); // offset
            let offset =
                i32::try_from(offset).ok().filter(|offset| (-(1 << 28)..1 << 28).contains(offset))?;
            saved_at::<A>(rule, opcode & 0x3f, offset)
        }
        _ => None,
    }
}

fn kind_of<A: Abi>(register: u32) -> Option<Kind> {
    match register as usize {
        number if number == A::SP => Some(Kind::Sp),
        number if number == A::FP => Some(Kind::Fp),
        _ => None,
    }
}

/// An unsigned LEB128 number of at most three bytes.
fn uleb(code: &mut &[u8]) -> Option<u32> {
    let mut value = 0;
    for shift in [0, 7, 14] {
        let (&byte, rest) = code.split_first()?;
        *code = rest;
        value |= u32::from(byte & 0x7f) << shift;
        if byte < LONG {
            return Some(value);
        }
    }
    None
}
