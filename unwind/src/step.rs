//! One step by a packed rule, with the stack pointer and the frame pointer alone.

use crate::arch::WORD;
use crate::arch::native::{self, FP, Link, RETURN_ADDRESS, SP};
use crate::end::End;
use crate::frame::Frame;
use crate::leaf::Leaf;
use crate::memory::Memory;
use crate::rule::{Kind, ReturnAddress, Rule, SavedFp};
use crate::rule_cache::FastRule;
use crate::stack_cache::CachedFrame;
use crate::tracked::Tracked;

/// What packed rules need of a frame: program counter, stack pointer and frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameRegisters {
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    /// The frame pointer; `None` if an earlier frame lost it.
    pub(crate) fp: Option<u64>,
    /// Whether the pc is the next instruction rather than a return address.
    pub(crate) exact: bool,
    /// The link register, if it is known.
    pub(crate) link: Link,
}

impl FrameRegisters {
    /// The innermost frame.
    #[inline]
    pub(crate) fn leaf(leaf: &Leaf<'_>) -> Self {
        Self { pc: leaf.pc, sp: leaf.sp, fp: Some(leaf.fp), exact: true, link: Link::of(leaf.all) }
    }

    /// A frame that made a call.
    #[inline]
    pub(crate) fn caller(pc: u64, sp: u64, fp: Option<u64>) -> Self {
        Self { pc, sp, fp, exact: false, link: Link::LOST }
    }

    /// The registers known without unwinding again from the leaf.
    pub(crate) fn known(&self) -> Tracked {
        let mut known = Tracked::NOTHING;
        known.registers.pc = self.pc;
        known.set(RETURN_ADDRESS, self.link.get().unwrap_or(self.pc));
        known.set(SP, self.sp);
        if let Some(fp) = self.fp {
            known.set(FP, fp);
        }
        known
    }

    /// The address for looking up rules: inside the call instruction for a return address.
    #[inline]
    pub(crate) fn lookup(&self) -> u64 {
        self.pc.wrapping_sub(u64::from(!self.exact))
    }

    /// The stack cache's entry for this frame, reached by a fast rule from a frame at `sp`.
    pub(crate) fn entry(&self, sp: u64, rule: FastRule) -> Option<CachedFrame> {
        // Entries store a `Frame`, whose upper bits are flags.
        if self.pc >> Frame::ADDRESS_BITS != 0 {
            return None;
        }
        let saved = if rule.saves_fp() { self.fp? } else { self.pc };
        CachedFrame::fast(sp, self.sp.wrapping_sub(WORD), self.pc, rule, saved)
    }
}

/// The caller of `at` by `rule`; [`End::BadCfi`] if the rule is uncovered, complex or the root.
#[inline]
pub(crate) fn by_rule<M: Memory>(
    rule: Rule,
    at: &FrameRegisters,
    memory: &mut M,
) -> Result<FrameRegisters, End> {
    let offset = rule.offset() as u64;
    let mut load = |base: u64| -> Result<u64, End> {
        let word = memory.read(base.wrapping_add(offset)).ok_or(End::Unreadable)?;
        Ok(word.wrapping_add(rule.addend() as u64))
    };
    let cfa = match rule.kind() {
        Kind::Sp => at.sp.wrapping_add(offset),
        Kind::Fp => at.fp.ok_or(End::LostRegister)?.wrapping_add(offset),
        Kind::SpMemory => load(at.sp)?,
        Kind::FpMemory => load(at.fp.ok_or(End::LostRegister)?)?,
        Kind::Plt => {
            let pushed = (at.pc & 15) as i64 >= i64::from(rule.addend());
            at.sp.wrapping_add(offset).wrapping_add(if pushed { 8 } else { 0 })
        }
        Kind::Uncovered | Kind::Complex | Kind::Root | Kind::Register => return Err(End::BadCfi),
    };
    let pc = match native::return_address(rule) {
        ReturnAddress::AtCfa(offset) => {
            memory.read(cfa.wrapping_add(offset as u64)).ok_or(End::Unreadable)?
        }
        ReturnAddress::InRegister => at.link.get().ok_or(End::LostRegister)?,
    };
    let pc = native::strip(pc);
    let saved_slot = match rule.fp() {
        SavedFp::Same => return Ok(FrameRegisters::caller(pc, cfa, at.fp)),
        SavedFp::AtCfa(offset) => cfa.wrapping_add(offset as u64),
        SavedFp::AtFp(offset) => at.fp.ok_or(End::LostRegister)?.wrapping_add(offset as u64),
    };
    let fp = memory.read(saved_slot).ok_or(End::Unreadable)?;
    Ok(FrameRegisters::caller(pc, cfa, Some(fp)))
}

/// The caller of the frame with these registers, by a rule of [`Kind::Register`]. `None` if the register is not known.
pub(crate) fn by_register<M: Memory>(rule: Rule, at: &Tracked, memory: &mut M) -> Option<FrameRegisters> {
    let register = usize::try_from(rule.addend()).ok()?;
    let cfa = at.get(register)?.wrapping_add(rule.offset() as u64);
    let frame = FrameRegisters { sp: cfa, ..FrameRegisters::caller(0, cfa, at.get(FP)) };
    // Relative to the stack pointer as it is at the CFA.
    by_rule(rule.at_sp(), &frame, memory).ok()
}

/// The caller of `frame`, whose registers are `at`, by a rule of any kind that needs no call frame information.
pub(crate) fn by_inferred<M: Memory>(
    rule: Rule,
    frame: &FrameRegisters,
    at: &Tracked,
    memory: &mut M,
) -> Option<FrameRegisters> {
    match rule.kind() {
        Kind::Register => by_register(rule, at, memory),
        _ => by_rule(rule, frame, memory).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every word holds its own address plus one.
    struct Plain;

    impl Memory for Plain {
        fn read(&mut self, address: u64) -> Option<u64> {
            (address >= 0x1000).then_some(address + 1)
        }
    }

    const AT: FrameRegisters =
        FrameRegisters { pc: 0x40_000b, sp: 0x7000, fp: Some(0x8000), exact: true, link: Link::LOST };

    fn step(kind: Kind, offset: i32, addend: i32, fp: SavedFp) -> Result<FrameRegisters, End> {
        by_rule(Rule::new(kind, offset, addend, fp).unwrap(), &AT, &mut Plain)
    }

    fn caller(cfa: u64, fp: u64) -> Result<FrameRegisters, End> {
        Ok(FrameRegisters::caller(cfa - 7, cfa, Some(fp)))
    }

    #[test]
    fn each_kind_finds_the_caller() {
        assert_eq!(step(Kind::Sp, 16, 0, SavedFp::Same), caller(0x7010, 0x8000));
        assert_eq!(step(Kind::Sp, 16, 0, SavedFp::AtCfa(-16)), caller(0x7010, 0x7001));
        assert_eq!(step(Kind::Fp, 16, 0, SavedFp::AtFp(-8)), caller(0x8010, 0x7ff9));
        assert_eq!(step(Kind::SpMemory, 8, 7, SavedFp::Same), caller(0x7010, 0x8000));
        assert_eq!(step(Kind::FpMemory, -8, 7, SavedFp::Same), caller(0x8000, 0x8000));
        assert_eq!(step(Kind::Plt, 8, 11, SavedFp::Same), caller(0x7010, 0x8000));
        assert_eq!(step(Kind::Plt, 8, 12, SavedFp::Same), caller(0x7008, 0x8000));
    }

    #[test]
    fn unreadable_memory_ends_the_walk() {
        assert_eq!(step(Kind::Sp, -0x6f00, 0, SavedFp::Same), Err(End::Unreadable));
        assert_eq!(step(Kind::Sp, 16, 0, SavedFp::AtCfa(-0x6f00)), Err(End::Unreadable));
        let lost = FrameRegisters { fp: None, ..AT };
        let rule = Rule::new(Kind::Fp, 16, 0, SavedFp::Same).unwrap();
        assert_eq!(by_rule(rule, &lost, &mut Plain), Err(End::LostRegister));
        assert_eq!(by_rule(Rule::COMPLEX, &AT, &mut Plain), Err(End::BadCfi));
    }
}
