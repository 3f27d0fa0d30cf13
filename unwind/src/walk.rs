//! The walk of one stack, leaf to root.
//!
//! Packed rules need the program counter, the stack pointer and the frame pointer only. When a rule needs another register,
//! the walk replays the steps from the last frame at which all registers were known, with all of them tracked.

use crate::all_registers;
use crate::arch::Registers;
use crate::arch::native::{self, FP, RETURN_ADDRESS, SP};
use crate::end::End;
use crate::fast_path::FastPath;
use crate::frame::{FoundBy, Frame};
use crate::heuristic;
use crate::leaf::Leaf;
use crate::memory::Memory;
use crate::module::Module;
use crate::modules::Modules;
use crate::regions::{NoRegions, RegionStep, Regions};
use crate::rule::{Kind, Rule};
use crate::rule_cache::{FastRule, RuleCache};
use crate::rules::Rules;
use crate::splice::Splice;
use crate::stack_cache::{CachedFrame, CommonFrame, StackCache};
use crate::step::{self, FrameRegisters};
use crate::tracked::Tracked;
use crate::walk_result::Walk;

/// Steps per walk that may lead to a lower stack address (another stack).
const SWITCHES: u8 = 16;
/// Frames per walk that may be found without call frame information by scanning.
const GUESSES: u8 = 32;
/// Innermost frames of the previous walk whose rules are prefetched for the next one.
const LIKELY: usize = 16;

/// Walks the stack whose leaf is `registers`. At most `most` frames are found; they are then [`StackCache::frames`].
///
/// Signal-safe: no allocation, no lock, bounded time whatever memory and call frame information contain. Stack and code are
/// read through `memory`, the sections in `modules` directly. `stack_cache` never changes which frames are found.
pub fn walk<M: Memory>(
    modules: &Modules<'_>,
    cache: &RuleCache,
    registers: &Registers,
    memory: &mut M,
    stack_cache: &mut StackCache,
    most: usize,
) -> Walk {
    walk_with(modules, cache, &Leaf::of(&|| *registers), memory, stack_cache, most, &mut NoRegions)
}

/// Like [`walk`], with unwinders for regions of code: where one is registered, it is consulted before any other rule.
/// `modules` must not cover these regions.
pub fn walk_with<'m, M: Memory, R: Regions<'m>>(
    modules: &'m Modules<'m>,
    cache: &'m RuleCache,
    leaf: &Leaf<'_>,
    memory: &mut M,
    stack_cache: &mut StackCache,
    most: usize,
    regions: &mut R,
) -> Walk {
    stack_cache.begin(modules.generation(), leaf.sp);
    if stack_cache.repeats(leaf, most, memory) {
        let depth = stack_cache.frames().len();
        return Walk { depth, end: End::Root, unchanged: depth };
    }
    stack_cache.unmark();
    // Other calls, but mostly of the same functions: their rules arrive together, instead of one after another.
    stack_cache.frames().iter().take(LIKELY).for_each(|frame| cache.prefetch(frame.address()));
    let mut walker = Walker {
        rules: Rules::new(modules, cache),
        memory,
        regions,
        stack_cache,
        most: most.min(StackCache::CAPACITY),
        depth: 0,
        splice: None,
        at: FrameRegisters::leaf(leaf),
        leaf,
        has_root: false,
        has_mark: false,
        mark_exact: true,
        since_mark: 0,
        switches: SWITCHES,
        guesses: GUESSES,
    };
    walker.walk()
}

/// How a step was made.
enum Stepped {
    /// By a fast rule.
    Fast(CachedFrame),
    Otherwise(FoundBy),
}

struct Walker<'w, 'm, M, R> {
    rules: Rules<'m>,
    memory: &'w mut M,
    regions: &'w mut R,
    stack_cache: &'w mut StackCache,
    /// Maximum number of frames.
    most: usize,
    /// Number of frames noted so far. Common frames are not copied: they stay in the stack cache as the previous walk
    /// left them.
    depth: usize,
    splice: Option<Splice>,
    /// The frame noted last, whose caller is to be found next.
    at: FrameRegisters,
    leaf: &'w Leaf<'w>,
    /// According to its rule, the last frame has no caller.
    has_root: bool,
    /// The registers in the stack cache belong to the mark: a frame `since_mark` steps before `at`. Otherwise the leaf
    /// is the mark.
    has_mark: bool,
    mark_exact: bool,
    since_mark: u32,
    switches: u8,
    guesses: u8,
}

impl<'m, M: Memory, R: Regions<'m>> Walker<'_, 'm, M, R> {
    fn walk(&mut self) -> Walk {
        if self.most == 0 {
            return self.end(End::DepthLimit);
        }
        self.note_entry(CachedFrame::leaf(self.leaf));
        let mut hit = self.find();
        loop {
            if hit.is_none() && !self.has_guessed() {
                hit = self.fast_path();
            }
            if let Some(index) = hit
                && self.splice(index)
            {
                self.has_root = true;
                return self.end(End::Root);
            }
            let was_exact = self.at.exact;
            match self.step() {
                Ok(_) if self.depth == self.most => return self.end(End::DepthLimit),
                Ok(Stepped::Fast(entry)) => self.note_entry(entry),
                Ok(Stepped::Otherwise(found_by)) => self.note(found_by),
                Err(end) => {
                    if self.at.exact != was_exact {
                        self.diverge();
                        self.stack_cache.make_exact(self.depth - 1, self.at.fp);
                    }
                    return self.end(end);
                }
            }
            hit = self.find();
            if let Some(splice) = self.splice
                && hit != Some(splice.index_of(self.depth - 1))
            {
                self.diverge();
            }
        }
    }

    /// Whether a frame was found by scanning. Every frame further out is then uncertain as well.
    fn has_guessed(&self) -> bool {
        self.guesses < GUESSES
    }

    /// Notes the current frame.
    fn note(&mut self, found_by: FoundBy) {
        let frame = Frame::new(self.at.pc, found_by, self.at.exact);
        self.note_entry(CachedFrame::otherwise(frame, self.at.sp, self.at.fp));
    }

    fn note_entry(&mut self, entry: CachedFrame) {
        self.stack_cache.note(self.depth, entry);
        self.depth += 1;
    }

    /// Index at which the previous walk visited the frame noted last. After a guess, a hit counts only if the previous
    /// walk had guessed by then, too: otherwise it checked return addresses less strictly.
    fn find(&self) -> Option<usize> {
        let index = self.stack_cache.find_noted(self.depth - 1, self.at.fp?)?;
        (!self.has_guessed() || self.stack_cache.had_guessed(index)).then_some(index)
    }

    /// Advances over frames with fast rules. Stops at a frame that the previous walk visited, and returns its index;
    /// or at a frame that needs another kind of step.
    #[inline]
    fn fast_path(&mut self) -> Option<usize> {
        // The fast path expects a return address.
        let address = self.at.lookup().wrapping_add(1);
        let mut fast = FastPath::new(self.rules, address, self.at.exact, self.at.sp, self.at.fp?);
        let (previous, noted) = self.stack_cache.split(self.depth, self.most);
        let hit = fast.go(previous, noted, self.memory);
        let steps = fast.steps();
        if steps > 0 {
            self.since_mark += steps as u32;
            self.depth += steps;
            let (pc, sp, fp) = fast.registers();
            self.at = FrameRegisters::caller(pc, sp, Some(fp));
        }
        hit
    }

    /// Follows the previous walk from `index`, which is the frame noted last, for as long as its words are unchanged.
    /// Returns whether that led to the root. Not inlined, so that its stack use does not add to that of a step.
    #[inline(never)]
    fn splice(&mut self, index: usize) -> bool {
        let previous = self.stack_cache.previous();
        let last = previous.follow(index, self.most - self.depth, self.memory);
        let is_root = last + 1 == StackCache::CAPACITY && previous.has_root();
        let mut steps = last - index;
        if !is_root {
            match previous.arrive(index, last, self.at.fp.unwrap_or_default(), self.memory) {
                Some(CommonFrame { frame, sp, fp }) if steps > 0 => {
                    self.since_mark += steps as u32;
                    self.at = FrameRegisters::caller(frame.address(), sp, Some(fp));
                }
                Some(_) => {}
                None => steps = 0,
            }
        }
        let from = self.depth - 1;
        self.depth += steps;
        self.splice.get_or_insert(Splice { from, until: 0, index }).until = self.depth;
        is_root
    }

    /// Diverges from the previous walk: copies the common frames into this walk's own, since the next frame is a
    /// different one.
    fn diverge(&mut self) {
        if let Some(Splice { from, until, index }) = self.splice.take() {
            // The first one is noted already: this walk reached it from a different frame.
            self.stack_cache.copy(from + 1, index + 1, until - from - 1);
        }
    }

    fn end(&mut self, end: End) -> Walk {
        let depth = self.depth;
        if let Some(splice) = self.splice
            && splice.index_of(depth) == StackCache::CAPACITY
            && splice.until == depth
        {
            let is_first = splice.from == 0;
            if !(is_first && self.stack_cache.end_unchanged(splice.index, self.has_root)) {
                // How the first common frame was reached is taken from this walk.
                self.stack_cache.end(splice.from + 1, splice.index + 1, self.has_root);
            }
            return Walk { depth, end, unchanged: depth - splice.from };
        }
        self.diverge();
        self.stack_cache.end(depth, StackCache::CAPACITY, self.has_root);
        Walk::fresh(depth, end)
    }

    /// Steps to the caller, and returns how it was found.
    #[inline]
    fn step(&mut self) -> Result<Stepped, End> {
        let lookup = self.at.lookup();
        let Some(rule) = self.rules.get(lookup, self.at.exact, self.memory)? else {
            self.at.exact = true;
            return Err(End::Root);
        };
        let rule = if rule.kind() == Kind::Uncovered { self.rules.late(lookup, self.regions)? } else { rule };
        let caller = match rule.kind() {
            Kind::Root => {
                self.has_root = true;
                return Err(End::Root);
            }
            Kind::Uncovered => return self.without_cfi(lookup).map(Stepped::Otherwise),
            Kind::Complex => return self.with_all_registers(lookup).map(Stepped::Otherwise),
            Kind::Register => return self.by_register(rule, lookup).map(Stepped::Otherwise),
            _ => match step::by_rule(rule, &self.at, self.memory) {
                // The outermost frame of a thread has nothing above it on the stack.
                Err(End::Unreadable) if heuristic::is_outermost(&self.at, self.memory) => {
                    return Err(End::Root);
                }
                caller => caller?,
            },
        };
        let entry = FastRule::new(rule).and_then(|rule| caller.entry(self.at.sp, rule));
        self.arrive(caller, rule.kind() == Kind::Sp)?;
        self.since_mark += 1;
        Ok(entry.map_or(Stepped::Otherwise(FoundBy::Cfi), Stepped::Fast))
    }

    /// Makes `caller` the current frame if it is further out, or on another stack.
    #[inline]
    fn arrive(&mut self, caller: FrameRegisters, same_stack: bool) -> Result<(), End> {
        if self.has_guessed() && !caller.exact && !self.may_be_called(&caller) {
            // The guess was wrong, or the stack beyond it is not where it seemed to be. Any word may be 0.
            return Err(End::NoCode);
        }
        if caller.pc == 0 {
            return Err(End::Root);
        }
        self.go_on(caller, same_stack)
    }

    /// Like [`arrive`](Self::arrive), for a caller that is known to be a possible return target.
    #[inline]
    fn go_on(&mut self, caller: FrameRegisters, same_stack: bool) -> Result<(), End> {
        // A leaf may have popped its return address already; nothing else can have an empty frame.
        let least = if self.at.exact { self.at.sp } else { self.at.sp.saturating_add(1) };
        if caller.sp < least {
            self.switches = match self.switches.checked_sub(1) {
                Some(left) if !same_stack => left,
                _ => return Err(End::NoProgress),
            };
        }
        if !same_stack {
            self.stack_cache.record_chain().low = caller.sp;
        }
        self.at = caller;
        Ok(())
    }

    /// Whether a call can return to `caller`.
    #[inline(never)]
    fn may_be_called(&mut self, caller: &FrameRegisters) -> bool {
        self.regions.find(caller.lookup()).is_some()
            || heuristic::may_be_called(self.rules.modules, caller.pc, self.memory)
    }

    /// Steps with all registers tracked since the mark, and moves the mark to the new frame.
    #[inline(never)]
    fn with_all_registers(&mut self, lookup: u64) -> Result<FoundBy, End> {
        let module = self.rules.modules.find(lookup).ok_or(End::NoModule)?;
        self.track()?;
        self.step_from_mark(module, lookup)
    }

    /// Steps by an inferred rule that needs one of the other registers. Without it, the rule is of no use.
    #[inline(never)]
    fn by_register(&mut self, rule: Rule, lookup: u64) -> Result<FoundBy, End> {
        self.track()?;
        let [mark, _] = self.stack_cache.registers();
        let Some(caller) = step::by_register(rule, mark, self.memory) else {
            return self.without_cfi(lookup);
        };
        self.arrive(caller, false)?;
        self.since_mark += 1;
        Ok(FoundBy::Cfi)
    }

    /// Moves the mark to the current frame, with all registers that are still known.
    fn track(&mut self) -> Result<(), End> {
        if !self.has_mark {
            *self.mark() = Tracked::from(&(self.leaf.all)());
            self.has_mark = true;
        }
        for _ in 0..self.since_mark {
            self.replay()?;
        }
        self.since_mark = 0;
        let Registers { pc, .. } = self.mark().registers;
        let is_here = pc == self.at.pc && self.mark().registers.sp() == self.at.sp;
        if is_here { Ok(()) } else { Err(End::NoProgress) }
    }

    /// Steps from the mark, which is at the current frame.
    #[inline(never)]
    fn step_from_mark(&mut self, module: &Module<'_>, lookup: u64) -> Result<FoundBy, End> {
        let ([mark, scratch], row) = self.stack_cache.all_registers();
        let interrupted =
            all_registers::step(module, lookup, mark, scratch, row, self.memory)?.ok_or(End::NoCfi)?;
        self.mark_exact = interrupted;
        let frame = self.marked();
        self.arrive(frame, false)?;
        Ok(FoundBy::Cfi)
    }

    fn mark(&mut self) -> &mut Tracked {
        let [mark, _] = self.stack_cache.registers();
        mark
    }

    /// The mark's frame, as packed rules need it.
    fn marked(&mut self) -> FrameRegisters {
        let exact = self.mark_exact;
        let mark = self.mark();
        let link = mark.link();
        FrameRegisters { pc: mark.registers.pc, sp: mark.registers.sp(), fp: mark.get(FP), exact, link }
    }

    /// Moves the mark by one frame, as a packed rule has already done for `at`.
    #[inline]
    fn replay(&mut self) -> Result<(), End> {
        let ([mark, scratch], row) = self.stack_cache.all_registers();
        let lookup = mark.registers.pc.wrapping_sub(u64::from(!self.mark_exact));
        let module = self.rules.modules.find(lookup).or_else(|| self.regions.generated(lookup));
        if let Some(module) = module
            && let Some(interrupted) = all_registers::step(module, lookup, mark, scratch, row, self.memory)?
        {
            self.mark_exact = interrupted;
            return Ok(());
        }
        self.replay_without_cfi()
    }

    #[inline(never)]
    fn replay_without_cfi(&mut self) -> Result<(), End> {
        let frame = self.marked();
        let [mark, _] = self.stack_cache.registers();
        if let Some(module) = self.rules.modules.find(frame.lookup())
            && let Ok(rule) = module.rule_at(frame.lookup())
            && let Some(caller) = step::by_inferred(rule, &frame, mark, self.memory)
        {
            // Such a rule does not say where the function has saved the other registers.
            mark.forget_all();
            self.set_mark(caller);
            return Ok(());
        }
        if let Some((caller, _)) =
            heuristic::stub(self.rules.modules, &frame, self.memory, self.stack_cache.record_chain())
        {
            // Code that has not set up its frame record modifies no callee-saved register.
            self.set_mark(caller);
            return Ok(());
        }
        let by_record =
            heuristic::record(self.rules.modules, &frame, self.memory, self.stack_cache.record_chain())
                .map(|(caller, _)| caller);
        let caller = by_record.or_else(|| heuristic::scan(self.rules.modules, &frame, self.memory));
        self.mark().forget_all();
        self.set_mark(caller.ok_or(End::NoCfi)?);
        Ok(())
    }

    /// Stores the result of a step in the mark.
    fn set_mark(&mut self, frame: FrameRegisters) {
        let mark = self.mark();
        mark.set(RETURN_ADDRESS, frame.pc);
        mark.arrive(false);
        mark.set(SP, frame.sp);
        if let Some(fp) = frame.fp {
            mark.set(FP, fp);
        }
        self.mark_exact = frame.exact;
    }

    /// Steps from code without call frame information.
    #[inline(never)]
    fn without_cfi(&mut self, lookup: u64) -> Result<FoundBy, End> {
        if let Some(found_by) = self.in_region(lookup)? {
            return Ok(found_by);
        }
        let module: Option<&Module<'_>> = self.rules.modules.find(lookup);
        if module.is_none()
            && let Some(found_by) = self.in_generated_code(lookup)?
        {
            return Ok(found_by);
        }
        if native::is_signal_restorer(self.at.pc, self.memory) {
            return self.over_signal_frame();
        }
        if module.is_none()
            && !self.at.exact
            && self.regions.find(lookup).is_none()
            && native::call_before(self.at.pc, self.memory).is_none()
            && let Some(end) = self.astray()
        {
            return Err(end);
        }
        if module
            .is_some_and(|module| heuristic::is_entry_stub(self.rules.modules, module, lookup, self.memory))
        {
            return Err(End::Root);
        }
        if module.is_some() && heuristic::is_outermost(&self.at, self.memory) {
            return Err(End::Root);
        }
        if let Some((caller, found_by)) =
            heuristic::stub(self.rules.modules, &self.at, self.memory, self.stack_cache.record_chain())
        {
            self.arrive(caller, true)?;
            self.since_mark += 1;
            return Ok(found_by);
        }
        if let Some((caller, same_stack)) =
            heuristic::record(self.rules.modules, &self.at, self.memory, self.stack_cache.record_chain())
        {
            self.go_on(caller, same_stack)?;
            self.since_mark += 1;
            return Ok(FoundBy::FramePointer);
        }
        if module.is_none()
            && matches!(self.stack_cache.found_by(self.depth - 1), Some(FoundBy::FramePointer | FoundBy::Cfi))
            && heuristic::begins_stack(self.rules.modules, &self.at, self.memory)
        {
            return Err(End::Root);
        }
        let nothing = if module.is_some() { End::NoCfi } else { End::NoModule };
        self.guesses = self.guesses.checked_sub(1).ok_or(nothing)?;
        let found = heuristic::scan(self.rules.modules, &self.at, self.memory);
        let Some(caller) = found else {
            // The deepest frame is marked by a frame pointer of 0 (System V ABI, 3.4.1).
            let is_marked = module.is_some() && !self.at.exact && self.at.fp == Some(0);
            return Err(if is_marked { End::Root } else { nothing });
        };
        self.arrive(caller, true)?;
        self.since_mark += 1;
        Ok(FoundBy::Guess)
    }

    /// Handles call frame information of the previous frame that led to an address that no call returns to, as Go's
    /// does where a function runs on another stack: that address is not a frame. `None` if the frame was reached in
    /// another way.
    #[cold]
    #[inline(never)]
    fn astray(&mut self) -> Option<End> {
        self.diverge();
        let (frame, sp, fp) = self.stack_cache.before(self.depth - 1, self.memory)?;
        self.depth -= 1;
        self.stack_cache.take_back(self.depth);
        self.at =
            FrameRegisters { exact: frame.is_exact(), ..FrameRegisters::caller(frame.address(), sp, fp) };
        let is_root = heuristic::is_outermost(&self.at, self.memory);
        Some(if is_root { End::Root } else { End::NoCode })
    }

    /// Steps by the rule for generated code at `lookup`. `None` if there is no such rule.
    #[inline(never)]
    fn in_generated_code(&mut self, lookup: u64) -> Result<Option<FoundBy>, End> {
        let Some(module) = self.regions.generated(lookup) else { return Ok(None) };
        let rule = module.rule_at(lookup)?;
        match rule.kind() {
            Kind::Uncovered => return Ok(None),
            Kind::Root => return Err(End::Root),
            Kind::Complex => {
                self.track()?;
                self.step_from_mark(module, lookup)?;
            }
            _ => {
                let caller = step::by_rule(rule, &self.at, self.memory)?;
                self.arrive(caller, rule.kind() == Kind::Sp)?;
                self.since_mark += 1;
            }
        }
        Ok(Some(FoundBy::Cfi))
    }

    /// Asks the unwinder of the region that contains `lookup`. `None` if there is no region, or if its unwinder
    /// declines the frame.
    #[inline(never)]
    fn in_region(&mut self, lookup: u64) -> Result<Option<FoundBy>, End> {
        let Some(region) = self.regions.find(lookup) else { return Ok(None) };
        let tracks = region.wants_all || region.under.is_some();
        if tracks {
            self.track()?;
        }
        let (number, exact, at) = (self.depth - 1, self.at.exact, self.at);
        let [mark, caller] = self.stack_cache.registers();
        *caller = if tracks { *mark } else { at.known() };
        match self.regions.step(number, exact, caller) {
            RegionStep::Caller { interrupted, other_stack } => {
                if !caller.knows(SP) {
                    return Err(End::BadUnwinder);
                }
                *mark = *caller;
                (self.has_mark, self.since_mark, self.mark_exact) = (true, 0, interrupted);
                self.leave_region(other_stack).map(Some)
            }
            RegionStep::Beside => match region.under {
                Some(module) => self.step_from_mark(module, lookup).map(Some),
                None => Ok(None),
            },
            RegionStep::End(end) => Err(end),
        }
    }

    /// Steps from the mark to the caller that an unwinder has reported.
    fn leave_region(&mut self, other_stack: bool) -> Result<FoundBy, End> {
        let caller = self.marked();
        let is_code =
            |lookup| self.rules.modules.find(lookup).is_some() || self.regions.find(lookup).is_some();
        let can_be = caller.pc == 0
            || is_code(caller.lookup())
            || heuristic::is_return_address(self.rules.modules, caller.pc, self.memory);
        if !can_be {
            return Err(End::BadUnwinder);
        }
        // Returning to the same address repeatedly would be an endless loop.
        if caller.sp == self.at.sp && caller.exact {
            return Err(End::NoProgress);
        }
        self.arrive(caller, !other_stack)?;
        Ok(FoundBy::Region)
    }

    /// Steps over a signal restorer without CFI: the kernel has saved every register.
    fn over_signal_frame(&mut self) -> Result<FoundBy, End> {
        let mut registers = Registers::default();
        native::read_sigcontext(self.at.sp, &mut registers, self.memory).ok_or(End::Unreadable)?;
        *self.mark() = Tracked::from(&registers);
        self.has_mark = true;
        self.mark_exact = true;
        self.since_mark = 0;
        let frame = self.marked();
        self.arrive(frame, false)?;
        Ok(FoundBy::Cfi)
    }
}
