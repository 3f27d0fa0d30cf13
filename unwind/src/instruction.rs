//! CFA byte code, one instruction at a time (DWARF 5, section 6.4.2 and 7.24; GNU extensions).

use crate::arch::Abi;
use crate::cursor::Cursor;
use crate::entry::Cie;
use crate::pointer::{self, Bases};
use crate::register_rule::Packed;

/// A decoded instruction. Offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instruction {
    /// Does not affect the rules.
    Nothing,
    /// Advances the location by this many bytes.
    Advance(u64),
    /// Sets the location to this address.
    Locate(u64),
    DefineCfa {
        register: u16,
        offset: i32,
    },
    CfaRegister(u16),
    CfaOffset(i32),
    /// The CFA is the expression at this offset of the section.
    CfaExpression(u32),
    /// A column gets this rule.
    Set(u64, Packed),
    /// A column returns to its initial rule, from the CIE.
    Reset(u64),
    Remember,
    Restore,
    /// Toggles whether the return address is signed.
    NegateSignState,
}

impl Instruction {
    /// Decodes the instruction at `code`; `None` if it is unknown, truncated, or its operands are out of range.
    #[inline]
    pub(crate) fn decode<A: Abi>(code: &mut Cursor<'_>, cie: &Cie<A>, bases: Bases) -> Option<Self> {
        let opcode = code.u8()?;
        let operand = u64::from(opcode & 0x3f);
        match opcode {
            0x40..0x80 => Some(Self::Advance(cie.advance(operand)?)),
            0x80..0xc0 => Some(Self::Set(operand, Packed::at_cfa(factored(cie, code.uleb()?)?)?)),
            0xc0.. => Some(Self::Reset(operand)),
            0x0e => Some(Self::CfaOffset(plain(code.uleb()?)?)),
            0x02 => {
                let delta = code.u8()?;
                Some(Self::Advance(cie.advance(u64::from(delta))?))
            }
            0x0a => Some(Self::Remember),
            0x0b => Some(Self::Restore),
            0x00 => Some(Self::Nothing),
            _ => Self::decode_rare(opcode, code, cie, bases),
        }
    }

    fn decode_rare<A: Abi>(opcode: u8, code: &mut Cursor<'_>, cie: &Cie<A>, bases: Bases) -> Option<Self> {
        Some(match opcode {
            0x01 => Self::Locate(pointer::address(code, cie.pointer_encoding, bases)?), // set_loc
            0x03 => Self::Advance(cie.advance(u64::from(code.u16()?))?),
            0x04 => Self::Advance(cie.advance(u64::from(code.u32()?))?),
            0x0c => Self::DefineCfa { register: register(code)?, offset: plain(code.uleb()?)? },
            0x12 => Self::DefineCfa { register: register(code)?, offset: signed(cie, code.sleb()?)? },
            0x0d => Self::CfaRegister(register(code)?),
            0x13 => Self::CfaOffset(signed(cie, code.sleb()?)?), // def_cfa_offset_sf
            0x0f => Self::CfaExpression(skip_block(code)?),
            0x06 => Self::Reset(code.uleb()?), // restore_extended
            0x05 | 0x07..=0x09 | 0x10 | 0x11 | 0x14..=0x16 | 0x2f => {
                let register = code.uleb()?;
                Self::Set(register, register_rule(opcode, code, cie)?)
            }
            0x2e => {
                code.uleb()?; // GNU_args_size: of interest to landing pads only
                Self::Nothing
            }
            0x2d if A::SIGN_STATE.is_some() => Self::NegateSignState, // AARCH64_negate_ra_state
            _ => return None,
        })
    }
}

/// The rule set by an instruction with a register operand.
fn register_rule<A: Abi>(opcode: u8, code: &mut Cursor<'_>, cie: &Cie<A>) -> Option<Packed> {
    match opcode {
        0x05 => Packed::at_cfa(factored(cie, code.uleb()?)?), // offset_extended
        0x07 => Some(Packed::UNDEFINED),
        0x08 => Some(Packed::SAME),
        0x09 => Packed::register(code.uleb()?),
        0x10 => Packed::at_expression(skip_block(code)? as usize),
        0x11 => Packed::at_cfa(i64::from(signed(cie, code.sleb()?)?)), // offset_extended_sf
        0x14 => Packed::cfa_plus(factored(cie, code.uleb()?)?),        // val_offset
        0x15 => Packed::cfa_plus(i64::from(signed(cie, code.sleb()?)?)), // val_offset_sf
        0x16 => Packed::expression(skip_block(code)? as usize),
        _ => Packed::at_cfa(factored(cie, code.uleb()?)?.checked_neg()?), // GNU_negative_offset_extended
    }
}

fn register(code: &mut Cursor<'_>) -> Option<u16> {
    u16::try_from(code.uleb()?).ok().filter(|&number| number < u16::MAX)
}

fn plain(offset: u64) -> Option<i32> {
    i32::try_from(offset).ok()
}

fn signed<A>(cie: &Cie<A>, offset: i64) -> Option<i32> {
    i32::try_from(offset.checked_mul(i64::from(cie.data_alignment))?).ok()
}

fn factored<A>(cie: &Cie<A>, offset: u64) -> Option<i64> {
    i64::try_from(offset).ok()?.checked_mul(i64::from(cie.data_alignment))
}

/// Skips a block and gives the offset of its length.
fn skip_block(code: &mut Cursor<'_>) -> Option<u32> {
    let position = u32::try_from(code.position()).ok()?;
    let length = usize::try_from(code.uleb()?).ok()?;
    code.skip(length)?;
    Some(position)
}
