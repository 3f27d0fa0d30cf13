//! One step with all registers tracked, for rules that need more than the stack and frame pointer.

use crate::arch::native::{COLUMNS, RETURN_ADDRESS, SP};
use crate::arch::{Abi, Native};
use crate::cursor;
use crate::end::End;
use crate::expression;
use crate::frame_row::{Cfa, FrameRow, Row};
use crate::memory::Memory;
use crate::module::Module;
use crate::modules::Modules;
use crate::register_rule::RegisterRule;
use crate::rule::Kind;
use crate::tracked::Tracked;

/// The full rules at an address. A type of its own so that finding them and applying them do not share stack.
struct RegisterRules<'r, 'a> {
    row: &'r mut FrameRow,
    /// The section that holds the row's expressions.
    section: &'a [u8],
    signal: bool,
}

impl<'r, 'a> RegisterRules<'r, 'a> {
    /// Without rules yet; they will be stored in `row`.
    fn none(row: &'r mut FrameRow) -> Self {
        *row = FrameRow::EMPTY;
        Self { row, section: &[], signal: false }
    }

    /// Finds the rules at `lookup`. `Ok(None)` if no FDE covers it.
    #[inline(never)]
    fn fill(&mut self, module: &Module<'a>, lookup: u64) -> Result<Option<()>, End> {
        // Borrowed: the handler's stack has no space for copies.
        match &module.fde_at(lookup) {
            Ok(Some(fde)) => {
                fde.fill_row(lookup, self.row).ok_or(End::BadCfi)?;
                self.section = fde.section.bytes;
                self.signal = fde.cie.is_signal_frame();
                Ok(Some(()))
            }
            Ok(None) => Ok(None),
            Err(end) => Err(*end),
        }
    }

    fn expression(&self, position: u32) -> Result<&'a [u8], End> {
        cursor::block(self.section, position).ok_or(End::BadCfi)
    }
}

/// Replaces the registers `at` by those of the caller, by the full rules at `lookup`. Returns whether the frame is a
/// signal frame, whose caller was interrupted. `Ok(None)` if no FDE covers the address. Overwrites `scratch` and `row`.
#[inline(never)]
pub(crate) fn step<M: Memory>(
    module: &Module<'_>,
    lookup: u64,
    at: &mut Tracked,
    scratch: &mut Tracked,
    row: &mut FrameRow,
    memory: &mut M,
) -> Result<Option<bool>, End> {
    let mut rules = RegisterRules::none(row);
    let Some(()) = rules.fill(module, lookup)? else { return Ok(None) };
    apply(&rules, at, scratch, memory)?;
    scratch.arrive(rules.signal);
    *at = *scratch;
    Ok(Some(rules.signal))
}

/// The registers that locate the frame at `lookup`, as a bit mask of DWARF numbers; 0 if a packed rule says it.
#[inline(never)]
pub fn registers_of_cfa(modules: &Modules<'_>, lookup: u64) -> u64 {
    let Some(module) = modules.find(lookup) else { return 0 };
    match module.rule_at(lookup) {
        Ok(rule) if rule.kind() == Kind::Register => {
            return u32::try_from(rule.addend()).ok().and_then(|at| 1u64.checked_shl(at)).unwrap_or(0);
        }
        Ok(rule) if rule.kind() == Kind::Complex => {}
        _ => return 0,
    }
    let mut row = FrameRow::EMPTY;
    let mut rules = RegisterRules::none(&mut row);
    match (rules.fill(module, lookup), rules.row.cfa()) {
        (Ok(Some(())), Cfa::Register { register, .. }) => 1u64.checked_shl(register.into()).unwrap_or(0),
        (Ok(Some(())), Cfa::Expression(position)) => {
            rules.expression(position).ok().and_then(expression::registers).unwrap_or(0)
        }
        _ => 0,
    }
}

#[inline(never)]
fn apply<M: Memory>(
    rules: &RegisterRules<'_, '_>,
    at: &Tracked,
    caller: &mut Tracked,
    memory: &mut M,
) -> Result<(), End> {
    match rules.row.register_rule(RETURN_ADDRESS) {
        RegisterRule::Undefined => return Err(End::Root),
        RegisterRule::Same if Native::PUSHED_AT.is_some() => return Err(End::Root),
        RegisterRule::Same if !at.knows(RETURN_ADDRESS) => return Err(End::LostRegister),
        _ => {}
    }
    let cfa = match rules.row.cfa() {
        Cfa::Register { register, offset } => {
            at.get(usize::from(register)).ok_or(End::LostRegister)?.wrapping_add(offset as u64)
        }
        Cfa::Expression(position) => expression::evaluate(rules.expression(position)?, None, at, memory)?,
        Cfa::Unset => return Err(End::BadCfi),
    };
    *caller = *at;
    caller.set(SP, cfa);
    for number in 0..COLUMNS {
        match recover(rules, rules.row.register_rule(number), cfa, at, memory) {
            Ok(Recovered::Unchanged) => {}
            Ok(Recovered::Value(value)) => caller.set(number, value),
            Err(end) if number == RETURN_ADDRESS || number == SP => return Err(end),
            Ok(Recovered::Lost) | Err(_) => caller.forget(number),
        }
    }
    Ok(())
}

enum Recovered {
    Unchanged,
    Lost,
    Value(u64),
}

fn recover<M: Memory>(
    rules: &RegisterRules<'_, '_>,
    register_rule: RegisterRule,
    cfa: u64,
    at: &Tracked,
    memory: &mut M,
) -> Result<Recovered, End> {
    let mut read = |address| memory.read(address).ok_or(End::Unreadable);
    let value = match register_rule {
        RegisterRule::Same => return Ok(Recovered::Unchanged),
        RegisterRule::Undefined => return Ok(Recovered::Lost),
        RegisterRule::AtCfa(offset) => read(cfa.wrapping_add(offset as u64))?,
        RegisterRule::CfaPlus(offset) => cfa.wrapping_add(offset as u64),
        RegisterRule::Register(number) => at.get(usize::from(number)).ok_or(End::LostRegister)?,
        RegisterRule::AtExpression(position) | RegisterRule::Expression(position) => {
            let value = expression::evaluate(rules.expression(position)?, Some(cfa), at, memory)?;
            if matches!(register_rule, RegisterRule::AtExpression(_)) {
                memory.read(value).ok_or(End::Unreadable)?
            } else {
                value
            }
        }
        RegisterRule::Constant(value) => u64::from(value),
    };
    Ok(Recovered::Value(value))
}
