//! The stack of one sample, from the interrupted registers to whoever wants it: the pool, or another process that asks.

use shm_format::{AnswerHead, Committed, Loss, Occasion, StackHead};
use unwind::{End, Frame, Walk};

use crate::activity::is_filtered;
use crate::clock;
use crate::context::Context;
use crate::interpreter::regions::Regions;
use crate::interpreter::{self, Signals};
use crate::outcome::{Missed, Outcome};
use crate::recording::Recording;
use crate::slot::Slot;
use crate::snapshot::{self, Pinned};
use crate::stack::{Bounds, Stack};

/// Pages that may be asked for when a stack is guessed: most return addresses lie in pages of their own.
const GUESS_PROBES: u32 = 4096;

/// A thread's stack, as its own walk found it.
pub(crate) struct Sample<'a> {
    recording: &'a Recording,
    slot: &'a Slot,
    walk: Walk,
    frames: &'a [u64],
}

impl<'a> Sample<'a> {
    /// Walks the interrupted stack into the thread's stack cache, and tells the encoder how many outer frames are
    /// unchanged since the last record. The caller is inside the slot's nesting guard.
    pub(crate) fn walk(recording: &'a Recording, slot: &'a Slot, context: Context<'_>) -> Self {
        // SAFETY: the caller's guard makes this the only use of the stack cache and of the pages.
        let (stack_cache, pages) = unsafe { (&mut *slot.stack_cache(), &mut *slot.probed_pages()) };
        let mut memory = Stack::new(known_bounds(slot, context), !is_filtered(), pages);
        let mut mixed = None;
        let walk = match Pinned::new(&slot.pin) {
            Some(pinned) => {
                let (modules, registers) = (pinned.modules(), &context.registers());
                // SAFETY: the scratch is the caller's too, by the guard.
                let scratch = unsafe { &mut *slot.scratch() };
                let stacks = [context.alternate_stack(), slot.stack()];
                let mut regions = Regions::new(
                    pinned.regions(),
                    pinned.generated(),
                    recording,
                    scratch.regions(),
                    stacks,
                    !is_filtered(),
                );
                let mut walk = unwind::walk_with(
                    modules,
                    recording.cache,
                    registers,
                    &mut memory,
                    stack_cache,
                    recording.max_frames,
                    &mut regions,
                );
                let is_known = || modules.find(registers.pc).is_some() || regions.hold(registers.pc);
                // Guesses may lead out of code that no module holds.
                if walk.end == End::NoModule || !is_known() {
                    snapshot::note_unknown_code();
                }
                if pinned.python().is_some() || !pinned.regions().is_empty() {
                    // What the walk before had among its frames is not remembered.
                    walk.unchanged = 0;
                    mixed = interpreter::add_frames(
                        &pinned,
                        Signals::Blocked,
                        recording,
                        slot.stack(),
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
        // SAFETY: the chain is the caller's too, by the guard.
        unsafe { &mut *slot.chain() }.walked(walk.unchanged);
        Self { recording, slot, walk, frames: mixed.unwrap_or_else(|| words(stack_cache.frames())) }
    }

    /// Of a walk that was made otherwise, inside the slot's nesting guard, and of which the chain was told.
    pub(crate) fn of_walk(recording: &'a Recording, slot: &'a Slot, walk: Walk, frames: &'a [u64]) -> Self {
        Self { recording, slot, walk, frames }
    }

    /// Every word of the interrupted stack that leads behind a call. The caller is inside the slot's nesting guard.
    #[inline(never)]
    pub(crate) fn guess(recording: &'a Recording, slot: &'a Slot, context: Context<'_>) -> Self {
        // SAFETY: the caller's guard makes this the only use of the stack cache, of the chain and of the pages.
        let (stack_cache, chain, pages) =
            unsafe { (&mut *slot.stack_cache(), &mut *slot.chain(), &mut *slot.probed_pages()) };
        let known = known_bounds(slot, context);
        let sp = context.stack_pointer();
        let limit = sp.saturating_add(recording.copy_limit);
        let base = known.iter().find(|bounds| bounds.hold(sp)).map_or(u64::MAX, |bounds| bounds.high);
        let mut memory = Stack::probing(known, if is_filtered() { 0 } else { GUESS_PROBES }, pages);
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
        Self { recording, slot, walk, frames: words(stack_cache.frames()) }
    }

    /// Writes one stack record, counts it if it is cut short, and wakes the reader if it is time to.
    pub(crate) fn record(&self, head: StackHead) -> Outcome {
        let head = StackHead { end: self.walk.end as u8, ..head };
        // SAFETY: `walk`'s caller is inside the slot's nesting guard, which makes this the only use of the chain.
        let chain = unsafe { &mut *self.slot.chain() };
        let region = &self.recording.region;
        let committed = chain.write(&self.slot.cursor, region, head, self.frames, clock::now);
        tell(self.recording, committed)?;
        if !self.walk.end.is_complete() {
            region.control().truncate();
        }
        Ok(())
    }

    /// Gives the stack to everyone who asks the thread for it; how many that were. The handler began at `entered`.
    #[cold]
    pub(crate) fn answer(&self, entered: u64, occasion: Occasion) -> u32 {
        let head = AnswerHead {
            tid: self.slot.tid(),
            thread_seq: self.slot.sequence(),
            depth: 0,
            end: self.walk.end as u8,
            occasion,
            entered,
            walked: clock::now(),
        };
        let answered = self.recording.region.answer(&head, self.frames);
        if answered != 0 && occasion != Occasion::Request {
            self.slot.set_owed();
        }
        answered
    }
}

/// The memory that is certainly mapped: what lies above the interrupted stack pointer on the thread's own stack
/// or on its alternate one.
pub(crate) fn known_bounds(slot: &Slot, context: Context<'_>) -> [Bounds; 2] {
    let lowest = context.lowest_in_use();
    let above = |bounds: Bounds| match bounds.hold(context.stack_pointer()) {
        true => Bounds { low: bounds.low.max(lowest), high: bounds.high },
        false => Bounds::NONE,
    };
    [above(slot.stack()), above(context.alternate_stack())]
}

/// Wakes the reader if it is time to, after the try to write a record.
#[inline]
pub(crate) fn tell(recording: &Recording, committed: Result<Committed, Loss>) -> Outcome {
    if committed.map_or_else(|cause| cause == Loss::PoolFull, |committed| committed.wake) {
        recording.ring();
    }
    committed.map(drop).map_err(Missed::Lost)
}

/// Frames as they stand in records.
pub(crate) fn words(frames: &[Frame]) -> &[u64] {
    // SAFETY: a `Frame` is one transparent word.
    unsafe { core::slice::from_raw_parts(frames.as_ptr().cast::<u64>(), frames.len()) }
}
