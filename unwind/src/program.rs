//! Runs CFA programs: up to one address, with the little stack that a handler has, or row by row.

use crate::arch::Abi;
use crate::cursor::Cursor;
use crate::entry::{Cie, Code};
use crate::frame_row::{CfaColumn, Row};
use crate::instruction::Instruction;
use crate::pointer::Bases;

/// Supported nesting depth of `remember_state`.
const DEPTH: usize = 8;

/// The CFA program of an FDE and its inputs.
#[derive(Clone, Copy)]
pub(crate) struct Program<'a, A> {
    /// The section's bytes. Expressions are stored as offsets in it.
    pub(crate) section: &'a [u8],
    pub(crate) cie: &'a Cie<A>,
    pub(crate) bases: Bases,
    pub(crate) code: Code,
}

impl<'a, A: Abi> Program<'a, A> {
    fn cursor(&self, extent: Code) -> Option<Cursor<'a>> {
        Some(Cursor::at(self.section.get(..extent.end as usize)?, extent.start as usize))
    }

    /// Stores the CIE's initial rules in `row`. `None` if its program is malformed.
    pub(crate) fn initial<R: Row>(&self, row: &mut R) -> Option<()> {
        *row = R::EMPTY;
        let mut code = self.cursor(self.cie.code)?;
        while !code.is_at_end() {
            let instruction = Instruction::decode(&mut code, self.cie, self.bases)?;
            if matches!(instruction, Instruction::Remember | Instruction::Restore) {
                return None;
            }
            apply(row, instruction, &R::EMPTY);
        }
        Some(())
    }

    /// Stores the row at `address` of the function that begins at `start` in `row`. `None` if the program is malformed.
    ///
    /// Saves no rows. The first pass finds where the program reaches `address` and which `remember_state`s are open
    /// there; the second pass skips everything between a closed `remember_state` and its `restore_state`.
    pub(crate) fn row_at<R: Row>(&self, start: u64, address: u64, row: &mut R) -> Option<()> {
        let survey = self.survey(start, address)?;
        self.initial(row)?;
        let initial = *row;
        let mut code = self.cursor(Code { end: survey.stop, ..self.code })?;
        let mut closed = 0u32;
        while !code.is_at_end() {
            let position = code.position() as u32;
            match Instruction::decode(&mut code, self.cie, self.bases)? {
                Instruction::Remember if closed > 0 || !survey.is_open(position) => closed += 1,
                Instruction::Restore => closed = closed.checked_sub(1)?,
                instruction if closed == 0 => apply(row, instruction, &initial),
                _ => {}
            }
        }
        Some(())
    }

    #[inline(never)]
    fn survey(&self, start: u64, address: u64) -> Option<Survey> {
        let mut survey = Survey { stop: self.code.end, open: [0; DEPTH], count: 0 };
        let mut location = start;
        let mut code = self.cursor(self.code)?;
        while !code.is_at_end() {
            let position = code.position() as u32;
            let next = match Instruction::decode(&mut code, self.cie, self.bases)? {
                Instruction::Advance(distance) => location.checked_add(distance)?,
                Instruction::Locate(target) if target < location => return None,
                Instruction::Locate(target) => target,
                Instruction::Remember => {
                    *survey.open.get_mut(survey.count)? = position;
                    survey.count += 1;
                    location
                }
                Instruction::Restore => {
                    survey.count = survey.count.checked_sub(1)?;
                    location
                }
                _ => location,
            };
            if next > address {
                survey.stop = position;
                break;
            }
            location = next;
        }
        Some(survey)
    }

    /// Calls `each(from, to, row)` for every row of the function `start..end`, until it returns false. `initial` is the
    /// result of [`Program::initial`]. `Err` holds the position in a malformed program.
    #[inline]
    pub(crate) fn rows<R: Row>(
        &self,
        initial: R,
        start: u64,
        end: u64,
        mut each: impl FnMut(u64, u64, &R) -> bool,
    ) -> Result<(), u64> {
        let mut row = initial;
        let mut location = start;
        let mut saved = [R::EMPTY; DEPTH];
        let mut count = 0;
        let mut code = self.cursor(self.code).ok_or(location)?;
        while !code.is_at_end() {
            let instruction = Instruction::decode(&mut code, self.cie, self.bases).ok_or(location)?;
            let next = match instruction {
                Instruction::Advance(distance) => location.checked_add(distance).ok_or(location)?,
                Instruction::Locate(target) if target < location => return Err(location),
                Instruction::Locate(target) => target,
                Instruction::Remember => {
                    *saved.get_mut(count).ok_or(location)? = row;
                    count += 1;
                    continue;
                }
                Instruction::Restore => {
                    count = usize::checked_sub(count, 1).ok_or(location)?;
                    row = *saved.get(count).ok_or(location)?;
                    continue;
                }
                _ => {
                    apply(&mut row, instruction, &initial);
                    continue;
                }
            };
            if !each(location, next, &row) {
                return Ok(());
            }
            location = next;
        }
        each(location, end.max(location), &row);
        Ok(())
    }
}

/// Applies an instruction that sets a rule to `row`; ignores others.
#[inline]
fn apply<R: Row>(row: &mut R, instruction: Instruction, initial: &R) {
    match instruction {
        Instruction::DefineCfa { register, offset } => {
            *row.cfa_mut() = CfaColumn { register, offset, expression: 0 };
        }
        Instruction::CfaRegister(register) => {
            let cfa = row.cfa_mut();
            *cfa = CfaColumn { register, offset: cfa.offset, expression: 0 };
        }
        Instruction::CfaOffset(offset) => row.cfa_mut().offset = offset,
        Instruction::CfaExpression(position) => row.cfa_mut().expression = position,
        Instruction::Set(register, register_rule) => row.set(register, register_rule),
        Instruction::Reset(register) => row.set(register, initial.get(register)),
        Instruction::NegateSignState => row.negate_sign_state(),
        Instruction::Nothing
        | Instruction::Advance(_)
        | Instruction::Locate(_)
        | Instruction::Remember
        | Instruction::Restore => {}
    }
}

/// Result of the first pass.
struct Survey {
    /// Offset of the instruction that advances past the address.
    stop: u32,
    /// Offsets of the `remember_state`s that are still open there.
    open: [u32; DEPTH],
    count: usize,
}

impl Survey {
    fn is_open(&self, position: u32) -> bool {
        self.open.get(..self.count).is_some_and(|open| open.contains(&position))
    }
}
