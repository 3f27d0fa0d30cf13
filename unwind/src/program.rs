//! The interpreter of CFA byte code (DWARF 5, section 6.4.2), used on demand and by the compiler alike.

use crate::cfi::Cie;
use crate::cursor::Cursor;
use crate::frame_row::{CfaColumn, Packed};
use crate::pointer::{self, Bases};

/// What a program computes: the CFA and as many columns as the caller cares for.
pub(crate) trait Row: Copy {
    /// No rule for anything.
    const EMPTY: Self;

    fn cfa_mut(&mut self) -> &mut CfaColumn;
    /// The rule of a column that is kept, [`Packed::SAME`] for others.
    fn get(&self, register: u64) -> Packed;
    /// Keeps the rule if the column is one that is kept.
    fn set(&mut self, register: u64, recovery: Packed);
}

/// A stretch of byte code inside its section: expressions are remembered as offsets in `section`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program<'a> {
    pub(crate) section: &'a [u8],
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// The state of the interpreter; `DEPTH` bounds the nesting of `remember_state`.
pub(crate) struct Machine<R, const DEPTH: usize> {
    pub(crate) row: R,
    pub(crate) location: u64,
    initial: R,
    saved: [R; DEPTH],
    saved_count: usize,
}

impl<R: Row, const DEPTH: usize> Machine<R, DEPTH> {
    pub(crate) fn new() -> Self {
        Self { row: R::EMPTY, location: 0, initial: R::EMPTY, saved: [R::EMPTY; DEPTH], saved_count: 0 }
    }

    /// Runs the CIE's program: its rules are those that `restore` goes back to. `None` when it is malformed.
    pub(crate) fn begin(&mut self, cie: &Cie<'_>, location: u64) -> Option<()> {
        self.row = R::EMPTY;
        self.initial = R::EMPTY;
        self.saved_count = 0;
        self.run(cie, cie.program, Bases::default(), |_, _, _| true)?;
        self.resume(self.row, location);
        Some(())
    }

    /// Starts from the rules that a CIE's program left.
    pub(crate) fn resume(&mut self, initial: R, location: u64) {
        self.row = initial;
        self.initial = initial;
        self.saved_count = 0;
        self.location = location;
    }

    /// Runs `program`, which must belong to `cie`. Before each move of the location calls `advance(row, from, to)`
    /// and stops, successfully, when it says false. `None` when the program is malformed.
    #[inline]
    pub(crate) fn run(
        &mut self,
        cie: &Cie<'_>,
        program: Program<'_>,
        bases: Bases,
        mut advance: impl FnMut(&R, u64, u64) -> bool,
    ) -> Option<()> {
        let mut code = Cursor::at(program.section.get(..program.end)?, program.start);
        while !code.is_at_end() {
            let opcode = code.u8()?;
            let operand = u64::from(opcode & 0x3f);
            let target = match opcode {
                0x40..0x80 => self.after(cie, operand)?,
                0x80..0xc0 => {
                    let offset = factored(cie, code.uleb()?)?;
                    self.row.set(operand, Packed::at_cfa(offset)?);
                    continue;
                }
                0xc0.. => {
                    self.row.set(operand, self.initial.get(operand));
                    continue;
                }
                0x01 => pointer::address(&mut code, cie.pointer_encoding, bases)?,
                0x02 => {
                    let delta = u64::from(code.u8()?);
                    self.after(cie, delta)?
                }
                0x03 => {
                    let delta = u64::from(code.u16()?);
                    self.after(cie, delta)?
                }
                0x04 => {
                    let delta = u64::from(code.u32()?);
                    self.after(cie, delta)?
                }
                _ => {
                    self.rule(cie, opcode, &mut code)?;
                    continue;
                }
            };
            if target < self.location {
                return None;
            }
            if !advance(&self.row, self.location, target) {
                return Some(());
            }
            self.location = target;
        }
        Some(())
    }

    fn after(&self, cie: &Cie<'_>, delta: u64) -> Option<u64> {
        self.location.checked_add(delta.checked_mul(cie.code_alignment)?)
    }

    /// The instructions without an operand in the opcode that do not move the location.
    fn rule(&mut self, cie: &Cie<'_>, opcode: u8, code: &mut Cursor<'_>) -> Option<()> {
        match opcode {
            0x0c..=0x0f | 0x12 | 0x13 => self.cfa_rule(cie, opcode, code),
            0x05..=0x09 | 0x10 | 0x11 | 0x14..=0x16 | 0x2f => self.register_rule(cie, opcode, code),
            0x00 => Some(()), // nop
            0x0a => {
                *self.saved.get_mut(self.saved_count)? = self.row;
                self.saved_count += 1;
                Some(())
            }
            0x0b => {
                self.saved_count = self.saved_count.checked_sub(1)?;
                self.row = *self.saved.get(self.saved_count)?;
                Some(())
            }
            0x2e => code.uleb().map(|_| ()), // GNU_args_size: of interest to landing pads only
            _ => None,
        }
    }

    fn cfa_rule(&mut self, cie: &Cie<'_>, opcode: u8, code: &mut Cursor<'_>) -> Option<()> {
        let cfa = self.row.cfa_mut();
        match opcode {
            // def_cfa, def_cfa_sf
            0x0c => {
                *cfa = CfaColumn { register: register(code)?, offset: plain(code.uleb()?)?, expression: 0 }
            }
            0x12 => {
                *cfa =
                    CfaColumn { register: register(code)?, offset: signed(cie, code.sleb()?)?, expression: 0 }
            }
            // def_cfa_register
            0x0d => *cfa = CfaColumn { register: register(code)?, offset: cfa.offset, expression: 0 },
            // def_cfa_offset, def_cfa_offset_sf
            0x0e => cfa.offset = plain(code.uleb()?)?,
            0x13 => cfa.offset = signed(cie, code.sleb()?)?,
            // def_cfa_expression
            _ => cfa.expression = skip_block(code)?,
        }
        Some(())
    }

    fn register_rule(&mut self, cie: &Cie<'_>, opcode: u8, code: &mut Cursor<'_>) -> Option<()> {
        let register = code.uleb()?;
        let recovery = match opcode {
            0x05 => Packed::at_cfa(factored(cie, code.uleb()?)?)?, // offset_extended
            0x06 => self.initial.get(register),                    // restore_extended
            0x07 => Packed::UNDEFINED,
            0x08 => Packed::SAME,
            0x09 => Packed::register(code.uleb()?)?,
            0x10 => Packed::at_expression(skip_block(code)? as usize)?,
            0x11 => Packed::at_cfa(i64::from(signed(cie, code.sleb()?)?))?, // offset_extended_sf
            0x14 => Packed::cfa_plus(factored(cie, code.uleb()?)?)?,        // val_offset
            0x15 => Packed::cfa_plus(i64::from(signed(cie, code.sleb()?)?))?, // val_offset_sf
            0x16 => Packed::expression(skip_block(code)? as usize)?,
            _ => Packed::at_cfa(factored(cie, code.uleb()?)?.checked_neg()?)?, // GNU_negative_offset_extended
        };
        self.row.set(register, recovery);
        Some(())
    }
}

fn register(code: &mut Cursor<'_>) -> Option<u16> {
    u16::try_from(code.uleb()?).ok().filter(|&number| number < u16::MAX)
}

fn plain(offset: u64) -> Option<i32> {
    i32::try_from(offset).ok()
}

fn signed(cie: &Cie<'_>, offset: i64) -> Option<i32> {
    i32::try_from(offset.checked_mul(cie.data_alignment)?).ok()
}

fn factored(cie: &Cie<'_>, offset: u64) -> Option<i64> {
    i64::try_from(offset).ok()?.checked_mul(cie.data_alignment)
}

/// Steps over a block and gives the offset of its length.
fn skip_block(code: &mut Cursor<'_>) -> Option<u32> {
    let position = u32::try_from(code.position()).ok()?;
    let length = usize::try_from(code.uleb()?).ok()?;
    code.skip(length)?;
    Some(position)
}
