//! The walk of one stack, leaf to root.
//!
//! The fast path knows the program counter, stack pointer and frame pointer. When a rule needs another register the
//! walk goes back to the last point where all registers were known (at first: the leaf) and comes forward again with
//! all of them tracked. Both paths obey the same rules, so they meet at the same frame.

use crate::cfi;
use crate::end::End;
use crate::exact::{self, Tracked};
use crate::frame::{FoundBy, Frame};
use crate::heuristic;
use crate::memory::Memory;
use crate::module::Module;
use crate::modules::Modules;
use crate::rule::{Kind, Rule};
use crate::rule_cache::RuleCache;
use crate::step::{self, Place};
use crate::x86_64::{self, FP, RETURN_ADDRESS, Registers, SP};

/// Steps per walk that may lead to a lower stack address (another stack).
const SWITCHES: u8 = 16;
/// Frames per walk that may be found without call frame information by scanning.
const GUESSES: u8 = 32;

/// What a walk found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Frames written, leaf first.
    pub depth: usize,
    /// Why there are no more.
    pub end: End,
}

/// Walks the stack that `registers` are the leaf of and writes its frames, leaf first.
///
/// Signal-safe: no allocation, no lock, bounded time for any memory and any call frame information. All words of the
/// stack and of code come through `memory`; the sections in `modules` are read directly.
pub fn walk<M: Memory>(
    modules: &Modules<'_>,
    cache: &RuleCache,
    registers: &Registers,
    memory: &mut M,
    frames: &mut [Frame],
) -> Walk {
    let mut walker = Walker {
        modules,
        cache,
        memory,
        at: Place { pc: registers.pc, sp: registers.sp(), fp: Some(registers.fp()), exact: true },
        mark: Tracked::from(registers),
        mark_exact: true,
        since_mark: 0,
        switches: SWITCHES,
        guesses: GUESSES,
    };
    let mut found_by = FoundBy::Cfi;
    let mut depth = 0;
    loop {
        let Some(frame) = frames.get_mut(depth) else { return Walk { depth, end: End::DepthLimit } };
        *frame = Frame::new(walker.at.pc, found_by, walker.at.exact);
        depth += 1;
        match walker.step() {
            Ok(how) => found_by = how,
            Err(end) => {
                *frame = Frame::new(walker.at.pc, found_by, walker.at.exact);
                return Walk { depth, end };
            }
        }
    }
}

struct Walker<'w, M> {
    modules: &'w Modules<'w>,
    cache: &'w RuleCache,
    memory: &'w mut M,
    /// The frame whose caller is wanted.
    at: Place,
    /// An earlier frame with all its registers, `since_mark` steps before `at`.
    mark: Tracked,
    mark_exact: bool,
    since_mark: u32,
    switches: u8,
    guesses: u8,
}

impl<M: Memory> Walker<'_, M> {
    /// Goes on to the caller.
    #[inline]
    fn step(&mut self) -> Result<FoundBy, End> {
        let lookup = self.at.lookup();
        let rule = match self.cache.get(lookup, self.modules.generation()) {
            Some(rule) => rule,
            None => self.resolve(lookup)?,
        };
        let (caller, found_by) = match rule.kind() {
            Kind::Root => return Err(End::Root),
            Kind::Gap => return self.without_cfi(lookup),
            Kind::Complex => return self.exactly(lookup),
            _ => (step::by_rule(rule, &self.at, self.memory)?, FoundBy::Cfi),
        };
        self.arrive(caller, rule.kind() == Kind::Sp)?;
        self.since_mark += 1;
        Ok(found_by)
    }

    /// The rule for an address that is not in the cache, and puts it there.
    #[inline(never)]
    fn resolve(&mut self, lookup: u64) -> Result<Rule, End> {
        let Some(module) = self.modules.find(lookup) else { return Ok(Rule::GAP) };
        if self.is_made_up(module) {
            self.at.exact = true;
            return Ok(Rule::ROOT);
        }
        let rule = module.rule_at(lookup)?;
        self.cache.insert(lookup, self.modules.generation(), rule);
        Ok(rule)
    }

    /// Whether the return address was never pushed by a call but laid on a new stack, as `makecontext` does: a function
    /// begins there, nothing stands before it, and no call does.
    #[inline(never)]
    fn is_made_up(&mut self, module: &Module<'_>) -> bool {
        let pc = self.at.pc;
        !self.at.exact
            && pc.is_multiple_of(x86_64::FUNCTION_ALIGNMENT)
            && matches!(cfi::find(module, pc), Ok(Some(fde)) if fde.start == pc)
            && matches!(cfi::find(module, pc.wrapping_sub(1)), Ok(None))
            && x86_64::call_before(pc, self.memory).is_none()
    }

    /// Takes `caller` for the next frame, if it is further out or on another stack.
    #[inline]
    fn arrive(&mut self, caller: Place, same_stack: bool) -> Result<(), End> {
        if caller.pc == 0 {
            return Err(End::Root);
        }
        // A leaf may have popped its return address already; nothing else can have an empty frame.
        let least = if self.at.exact { self.at.sp } else { self.at.sp.saturating_add(1) };
        if caller.sp < least {
            self.switches = match self.switches.checked_sub(1) {
                Some(left) if !same_stack => left,
                _ => return Err(End::NoProgress),
            };
        }
        self.at = caller;
        Ok(())
    }

    /// Goes on with all registers tracked since the mark, and moves the mark here.
    #[inline(never)]
    fn exactly(&mut self, lookup: u64) -> Result<FoundBy, End> {
        for _ in 0..self.since_mark {
            self.replay()?;
        }
        self.since_mark = 0;
        if self.mark.registers.pc != self.at.pc || self.mark.registers.sp() != self.at.sp {
            return Err(End::NoProgress);
        }
        let module = self.modules.find(lookup).ok_or(End::NoModule)?;
        let interrupted = exact::step(module, lookup, &mut self.mark, self.memory)?.ok_or(End::NoCfi)?;
        self.mark_exact = interrupted;
        self.arrive(self.marked(), false)?;
        Ok(FoundBy::Cfi)
    }

    /// The mark as the fast path sees it.
    fn marked(&self) -> Place {
        Place {
            pc: self.mark.registers.pc,
            sp: self.mark.registers.sp(),
            fp: self.mark.get(FP),
            exact: self.mark_exact,
        }
    }

    /// Moves the mark one frame on, over a frame that the fast path went over before.
    #[inline]
    fn replay(&mut self) -> Result<(), End> {
        let lookup = self.mark.registers.pc.wrapping_sub(u64::from(!self.mark_exact));
        if let Some(module) = self.modules.find(lookup)
            && let Some(interrupted) = exact::step(module, lookup, &mut self.mark, self.memory)?
        {
            self.mark_exact = interrupted;
            return Ok(());
        }
        self.replay_without_cfi()
    }

    #[inline(never)]
    fn replay_without_cfi(&mut self) -> Result<(), End> {
        let place = self.marked();
        if let Some((caller, _)) = heuristic::stub(self.modules, &place, self.memory) {
            // The code before the frame record touches no register that a caller wants back.
            self.set_mark(caller);
            return Ok(());
        }
        let by_pointer = heuristic::frame_pointer(self.modules, &place, self.memory);
        let caller = by_pointer.or_else(|| heuristic::scan(self.modules, &place, self.memory));
        self.mark.forget_all();
        self.set_mark(caller.ok_or(End::NoCfi)?);
        Ok(())
    }

    /// Puts what a step found out into the mark.
    fn set_mark(&mut self, place: Place) {
        self.mark.set(RETURN_ADDRESS, place.pc);
        self.mark.set(SP, place.sp);
        if let Some(fp) = place.fp {
            self.mark.set(FP, fp);
        }
        self.mark_exact = place.exact;
    }

    /// Goes on from code that nothing is said about.
    #[inline(never)]
    fn without_cfi(&mut self, lookup: u64) -> Result<FoundBy, End> {
        let module: Option<&Module<'_>> = self.modules.find(lookup);
        if x86_64::is_signal_restorer(self.at.pc, self.memory) {
            return self.over_signal_frame();
        }
        if module.is_some_and(|module| heuristic::is_entry_stub(self.modules, module, lookup, self.memory)) {
            return Err(End::Root);
        }
        if let Some((caller, found_by)) = heuristic::stub(self.modules, &self.at, self.memory) {
            self.arrive(caller, true)?;
            self.since_mark += 1;
            return Ok(found_by);
        }
        if let Some(caller) = heuristic::frame_pointer(self.modules, &self.at, self.memory) {
            self.arrive(caller, true)?;
            self.since_mark += 1;
            return Ok(FoundBy::FramePointer);
        }
        let nothing = if module.is_some() { End::NoCfi } else { End::NoModule };
        self.guesses = self.guesses.checked_sub(1).ok_or(nothing)?;
        let caller = heuristic::scan(self.modules, &self.at, self.memory).ok_or(nothing)?;
        self.arrive(caller, true)?;
        self.since_mark += 1;
        Ok(FoundBy::Guess)
    }

    /// Goes on from a signal restorer without CFI: the kernel saved every register.
    fn over_signal_frame(&mut self) -> Result<FoundBy, End> {
        let mut registers = Registers::default();
        x86_64::read_sigcontext(self.at.sp, &mut registers, self.memory).ok_or(End::Unreadable)?;
        self.mark = Tracked::from(&registers);
        self.mark_exact = true;
        self.since_mark = 0;
        self.arrive(self.marked(), false)?;
        Ok(FoundBy::Cfi)
    }
}
