//! The stack of one sample: walked from the interrupted registers, then written to the pool or to the request slot of
//! another process.

use interpreter::Signals;
use platform::activity::is_filtered;
use platform::bounds::Bounds;
use platform::clock;
use shm_format::{AnswerHead, Committed, Loss, StackHead, Trigger};
use unwind::{End, FoundBy, Frame, Leaf, Walk};

use crate::context::Context;
use crate::learned_stack;
use crate::other_rules::OtherRules;
use crate::outcome::{Missed, Outcome};
use crate::recording::Recording;
use crate::slot::Slot;
use crate::snapshot::{self, Pinned};
use crate::stack::Stack;

/// Maximum number of pages probed by a scan for return addresses: most of the code that they point to is in pages of
/// its own.
const GUESS_PROBES: u32 = 4096;

/// Where a walk starts if not at the interrupted registers.
pub(crate) struct Elsewhere {
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    /// The part of the stack that may be read.
    pub(crate) known: Bounds,
}

/// A thread's stack, as its own walk found it.
pub(crate) struct Sample<'a> {
    recording: &'a Recording,
    slot: &'a Slot,
    end: End,
    /// Number of outermost frames of the walk that equal those of the thread's previous walk.
    shared: usize,
    frames: &'a [u64],
}

impl<'a> Sample<'a> {
    /// Walks the interrupted stack into the thread's stack cache, and tells the encoder how many outer frames are
    /// unchanged since the last record. The caller is inside the slot's nesting guard.
    #[inline(always)]
    pub(crate) fn walk(recording: &'a Recording, slot: &'a Slot, context: Context<'_>) -> Self {
        Self::walk_from(recording, slot, context, None)
    }

    /// The same from elsewhere on the thread's stack.
    #[inline(never)]
    pub(crate) fn walk_from(
        recording: &'a Recording,
        slot: &'a Slot,
        context: Context<'_>,
        elsewhere: Option<&Elsewhere>,
    ) -> Self {
        let (pc, sp, known) = match elsewhere {
            Some(at) => (at.pc, at.sp, at.known),
            None => (context.instruction_pointer(), context.stack_pointer(), known_bounds(slot, context)),
        };
        let registers = move || {
            let mut registers = context.registers();
            registers.move_to(pc, sp);
            registers
        };
        let leaf = Leaf { pc, sp, fp: context.frame_pointer(), all: &registers };
        // SAFETY: the caller is inside the nesting guard, so nothing else uses the stack cache and the pages.
        let (stack_cache, pages) = unsafe { (&mut *slot.stack_cache(), &mut *slot.probed_pages()) };
        let mut memory = Stack::new(known, sp, true, pages);
        let (mut mixed, mut shared) = (None, 0);
        let walk = match Pinned::new(&slot.pin) {
            Some(pinned) => {
                // SAFETY: the caller is inside the nesting guard, so nothing else uses the scratch memory.
                let scratch = unsafe { &mut *slot.scratch() };
                let mut other_rules = OtherRules::new(&pinned, recording, scratch.regions());
                if !pinned.regions().is_empty() {
                    other_rules.begin([context.alternate_stack(), slot.stack()], !is_filtered());
                }
                let mut walk = unwind::walk_with(
                    pinned.modules(),
                    recording.cache,
                    &leaf,
                    &mut memory,
                    stack_cache,
                    recording.max_frames,
                    &mut other_rules,
                );
                shared = walk.unchanged;
                // A guessed frame may lead here from code that is in no module: the walk then ends otherwise.
                let has_rule =
                    stack_cache.frames().get(1).is_some_and(|frame| frame.found_by() == FoundBy::Cfi);
                if walk.end == End::NoModule || !has_rule {
                    note_unknown_code(&walk, &pinned, &other_rules, pc);
                }
                if !pinned.is_native() {
                    // The stack cache does not remember which interpreted frames were among those of the previous walk.
                    walk.unchanged = 0;
                    let sampled = slot.sampled(&recording.region, Signals::Blocked);
                    mixed = interpreter::add_frames(
                        pinned.python(),
                        !pinned.regions().is_empty(),
                        &sampled,
                        recording.max_frames,
                        stack_cache,
                        &mut walk,
                        scratch,
                    );
                }
                walk
            }
            None => {
                stack_cache.forget();
                Walk::fresh(0, End::NoModule)
            }
        };
        // SAFETY: the caller is inside the nesting guard, so nothing else uses the chain.
        unsafe { &mut *slot.chain() }.walked(walk.unchanged);
        Self {
            recording,
            slot,
            end: walk.end,
            shared,
            frames: mixed.unwrap_or_else(|| words(stack_cache.frames())),
        }
    }

    /// A sample of a walk made elsewhere, inside the slot's nesting guard, and already reported to the chain.
    pub(crate) fn of_walk(recording: &'a Recording, slot: &'a Slot, end: End, frames: &'a [u64]) -> Self {
        Self { recording, slot, end, shared: 0, frames }
    }

    /// Scans the interrupted stack: every word that points after a call is a frame. The caller is inside the slot's
    /// nesting guard.
    #[inline(never)]
    pub(crate) fn guess(recording: &'a Recording, slot: &'a Slot, context: Context<'_>) -> Self {
        // SAFETY: the caller is inside the nesting guard, so nothing else uses the stack cache, the chain and the
        // pages.
        let (stack_cache, chain, pages) =
            unsafe { (&mut *slot.stack_cache(), &mut *slot.chain(), &mut *slot.probed_pages()) };
        let known = known_bounds(slot, context);
        let sp = context.stack_pointer();
        let limit = sp.saturating_add(recording.copy_limit);
        let base = if known == Bounds::NONE { u64::MAX } else { known.high };
        let mut memory = Stack::probing(known, sp, GUESS_PROBES, pages);
        let mut walk = match Pinned::new(&slot.pin) {
            Some(pinned) => unwind::guess(
                pinned.modules(),
                &context.registers(),
                limit.min(base) & !7,
                &mut memory,
                stack_cache,
                recording.max_frames,
            ),
            None => {
                stack_cache.forget();
                Walk::fresh(0, End::NoModule)
            }
        };
        if walk.end == End::Root && limit < base {
            walk.end = End::Unreadable;
        }
        chain.walked(0);
        Self { recording, slot, end: walk.end, shared: 0, frames: words(stack_cache.frames()) }
    }

    /// The number of outermost frames of the walk that equal those of the thread's previous walk, if this one is complete.
    pub(crate) fn shared(&self) -> usize {
        if self.end.is_complete() { self.shared } else { 0 }
    }

    /// Writes one stack record, counts it as truncated if the walk is incomplete, and wakes the reader if that is due.
    pub(crate) fn record(&self, mut head: StackHead) -> Outcome {
        head.end = self.end as u8;
        // SAFETY: the sample was made inside the slot's nesting guard, which is still held, so nothing else uses the
        // chain.
        let chain = unsafe { &mut *self.slot.chain() };
        let region = &self.recording.region;
        let committed = chain.write(&self.slot.cursor, region, head, self.frames, clock::now);
        tell(self.recording, committed)?;
        if !self.end.is_complete() {
            region.control().truncate();
        }
        Ok(())
    }

    /// Answers all requests for this thread's stack; returns how many there were. The handler began at `entered`.
    #[cold]
    #[inline(never)]
    pub(crate) fn answer(&self, entered: u64, trigger: Trigger) -> u32 {
        let head = AnswerHead {
            tid: self.slot.tid(),
            thread_seq: self.slot.sequence(),
            depth: 0,
            end: self.end as u8,
            trigger,
            entered,
            walked: clock::now(),
        };
        let answered = self.recording.region.answer(&head, self.frames);
        if answered != 0 && trigger != Trigger::Request {
            self.slot.set_owed();
        }
        answered
    }
}

/// Notes that the walk of the leaf at `pc` met code in no module, if it did.
#[cold]
#[inline(never)]
fn note_unknown_code(walk: &Walk, pinned: &Pinned<'_>, other_rules: &OtherRules<'_>, pc: u64) {
    let is_known = || pinned.modules().find(pc).is_some() || other_rules.hold(pc);
    if walk.end == End::NoModule || !is_known() {
        snapshot::note_unknown_code();
    }
}

/// The memory known to be mapped: the part above the interrupted stack pointer of the thread's own stack, or of its
/// alternate one. Empty if it is on neither.
pub(crate) fn known_bounds(slot: &Slot, context: Context<'_>) -> Bounds {
    let (own, sp) = (slot.stack(), context.stack_pointer());
    let mut bounds = if own.hold(sp) { own } else { context.alternate_stack() };
    if !bounds.hold(sp) {
        bounds = learned_stack::learn(slot, sp);
    }
    match bounds.hold(sp) {
        true => Bounds { low: bounds.low.max(context.lowest_in_use()), ..bounds },
        false => Bounds::NONE,
    }
}

/// Wakes the reader if the attempt to write a record makes that due, and converts the result.
#[inline]
pub(crate) fn tell(recording: &Recording, committed: Result<Committed, Loss>) -> Outcome {
    if committed.map_or_else(|cause| cause == Loss::PoolFull, |committed| committed.wake) {
        recording.ring();
    }
    committed.map(drop).map_err(Missed::Lost)
}

/// [`tell`] where there mostly is nothing to tell.
#[cold]
#[inline(never)]
pub(crate) fn tell_cold(recording: &Recording, committed: Result<Committed, Loss>) -> Outcome {
    tell(recording, committed)
}

/// Frames as words, as records hold them.
pub(crate) fn words(frames: &[Frame]) -> &[u64] {
    // SAFETY: `Frame` is a transparent wrapper of one word.
    unsafe { core::slice::from_raw_parts(frames.as_ptr().cast::<u64>(), frames.len()) }
}
