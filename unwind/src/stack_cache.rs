//! Remembers what a thread's previous walk found, and which words of memory each of its steps depended on.
//!
//! A fast step (one by a fast rule) is a pure function of the frame it starts from, the loaded modules, and one or
//! two words: the return address and, where the function saved it, the caller's frame pointer. So when a walk arrives
//! at a frame that the previous walk visited (a hit: same address, stack pointer and frame pointer), all following
//! steps have the same results for as long as those words are unchanged. Comparing them needs no rule lookup and,
//! unlike a walk, no load that waits for the one before: this is what makes it fast. Nothing else is assumed, so it
//! does not matter what happened to the stack in between: a return, a `longjmp`, a switch to another coroutine or
//! thread.
//!
//! All other steps (over signal frames, by expressions, between stacks, by guessing, with all registers tracked) are
//! repeated in each walk. A new generation of the modules invalidates everything.
//!
//! A saved frame pointer must be compared only if a step further out uses it, which in most code none does. After the
//! last such step only return addresses are compared, so the recorded frame pointers may be out of date there: a walk
//! that continues from such a frame with a step of its own reads the frame pointer again.
//!
//! A stack cache takes 70 KiB of address space per thread. With stacks of fifty frames about six pages of it are
//! touched.

mod unchanged;
mod words;

use core::ops::Range;

use crate::arch::WORD;
use crate::arch::native;
use crate::frame::{FoundBy, Frame};
use crate::frame_row::{FrameRow, Row};
use crate::leaf::Leaf;
use crate::memory::Memory;
use crate::record_chain::RecordChain;
use crate::rule_cache::FastRule;
use crate::tracked::Tracked;
use unchanged::{fps_unchanged, unchanged};

/// Maximum number of frames of one walk.
const CAPACITY: usize = 1024;
/// Number of buckets of the hash table that finds a frame by its stack pointer.
const BUCKETS: usize = 512;

/// A frame and how it was reached.
///
/// The entry of a fast step satisfies (and only words of such entries are read from memory):
/// - `slot` is not below the stack pointer of the frame before, so slots ascend along a run of fast steps;
/// - the return address is stored between that stack pointer and `slot`, and the frame pointer, if saved, between that
///   stack pointer and the return address.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CachedFrame {
    /// Address of the word below the frame's stack pointer, where calls that push a return address store it. If the
    /// step was not fast it is complemented, which makes it greater than any address.
    slot: u64,
    /// The frame. After a fast step this is exactly the return address in memory, without its signature.
    frame: Frame,
    /// After a fast step its rule; otherwise whether the frame pointer is known.
    by: u64,
    /// The frame pointer that the step restored, as a walk last read or compared it. The return address if a fast
    /// step restored none: `saved_slot` then points to that.
    fp: u64,
}

impl CachedFrame {
    const NOTHING: CachedFrame =
        CachedFrame { slot: u64::MAX, frame: Frame::from_bits(0), by: Self::FP_LOST, fp: 0 };
    /// Values of `by` after a step that was not fast.
    const FP_KNOWN: u64 = 0;
    const FP_LOST: u64 = 1;

    /// A fast step by `rule` from a frame at `sp`, given the return address and the word where the frame pointer was
    /// saved.
    ///
    /// `None` if these addresses violate the invariant of fast steps.
    #[inline]
    pub(crate) fn fast(sp: u64, slot: u64, address: u64, rule: FastRule, saved: u64) -> Option<Self> {
        let saved_slot = slot.wrapping_sub(rule.reach());
        let is_fast = sp <= saved_slot && saved_slot <= slot && slot < 1 << 63;
        // SAFETY: just checked.
        is_fast.then(|| unsafe { Self::fast_unchecked(slot, address, rule, saved) })
    }

    /// Like [`fast`](Self::fast), without the check.
    ///
    /// # Safety
    /// The addresses must be those of a fast step: the previous stack pointer is not above the saved frame pointer's
    /// address, which is not above `slot`, which is less than 2^63.
    #[inline]
    pub(crate) unsafe fn fast_unchecked(slot: u64, address: u64, rule: FastRule, saved: u64) -> Self {
        Self { slot, frame: Frame::from_bits(address), by: rule.bits(), fp: saved }
    }

    /// A frame that another kind of step led to. Later walks can find it if its stack pointer is a user-space address.
    #[inline]
    pub(crate) fn otherwise(frame: Frame, sp: u64, fp: Option<u64>) -> Self {
        let slot = sp.wrapping_sub(WORD);
        let slot = if is_fast(slot) { !slot } else { u64::MAX };
        let by = if fp.is_some() { Self::FP_KNOWN } else { Self::FP_LOST };
        Self { slot, frame, by, fp: fp.unwrap_or(0) }
    }

    /// The rule of a fast step.
    #[inline]
    pub(crate) fn rule(&self) -> FastRule {
        FastRule::from_bits(self.by)
    }

    /// The return address that led to this frame, after a fast step.
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.frame.bits()
    }

    /// Where a fast step read the frame pointer; the address of the return address if it read none.
    #[inline]
    fn saved_slot(&self) -> u64 {
        self.slot.wrapping_sub(self.rule().reach())
    }

    /// Whether the step to this frame determined the frame pointer.
    #[inline]
    fn sets_fp(&self) -> bool {
        !is_fast(self.slot) || self.rule().saves_fp()
    }

    /// The leaf of a walk.
    #[inline]
    pub(crate) fn leaf(leaf: &Leaf<'_>) -> Self {
        Self::otherwise(Frame::new(leaf.pc, FoundBy::Cfi, true), leaf.sp, Some(leaf.fp))
    }
}

/// Whether this [`CachedFrame::slot`] is that of a fast step.
#[inline]
fn is_fast(slot: u64) -> bool {
    slot < 1 << 63
}

/// The stack pointer of a frame with this [`CachedFrame::slot`].
#[inline]
fn sp(slot: u64) -> u64 {
    let slot = if is_fast(slot) { slot } else { !slot };
    slot.wrapping_add(WORD)
}

/// The previous walk, laid out for comparison by the next one: the entries of its frames, leaf first, at the end of
/// each array from index `start` on.
#[repr(C)]
pub(crate) struct Previous {
    start: usize,
    /// All steps to frames from this index on are fast.
    fast_from: usize,
    /// No fast step from a frame at this index or after it uses the frame pointer.
    fp_until: usize,
    generation: u32,
    /// According to its rule, the last frame has no caller.
    has_root: bool,
    /// Set by [`StackCache::mark`].
    is_marked: bool,
    frames: [Frame; CAPACITY],
    slots: [u64; CAPACITY],
    by: [u64; CAPACITY],
    fps: [u64; CAPACITY],
    /// Hash table by slot: the index where a frame may be, and in the bits above it the frame's lowest bits.
    buckets: [u32; BUCKETS],
}

/// One thread's stack cache: the previous walk, and the walk in progress. What every walk needs besides frames is in one cache
/// line.
#[repr(C, align(64))]
pub struct StackCache {
    /// In the walk in progress, the number of frames up to the last one that a step other than a fast one led to.
    others: usize,
    /// What the walk in progress knows about frame records.
    chain: RecordChain,
    previous: Previous,
    /// The frames of the walk in progress, leaf first.
    noted: [CachedFrame; CAPACITY],
    /// Scratch space for steps with all registers; too large for a handler's stack.
    registers: [Tracked; 2],
    row: FrameRow,
}

impl Default for StackCache {
    fn default() -> Self {
        Self::new()
    }
}

/// A frame that both walks visited.
#[derive(Clone, Copy)]
pub(crate) struct CommonFrame {
    pub(crate) frame: Frame,
    pub(crate) sp: u64,
    pub(crate) fp: u64,
}

impl StackCache {
    /// Maximum number of frames of one walk.
    pub const CAPACITY: usize = CAPACITY;

    /// A cache without a previous walk. Zeroed memory is one, too, after a call of [`forget`](Self::forget).
    pub const fn new() -> Self {
        Self {
            previous: Previous {
                frames: [Frame::from_bits(0); CAPACITY],
                slots: [0; CAPACITY],
                by: [0; CAPACITY],
                fps: [0; CAPACITY],
                buckets: [0; BUCKETS],
                start: CAPACITY,
                fast_from: CAPACITY,
                fp_until: 0,
                generation: 0,
                has_root: false,
                is_marked: false,
            },
            others: 0,
            chain: RecordChain::new(0),
            noted: [CachedFrame::NOTHING; CAPACITY],
            registers: [Tracked::NOTHING; 2],
            row: FrameRow::EMPTY,
        }
    }

    /// Forgets the previous walk. Does not touch the arrays.
    pub fn forget(&mut self) {
        self.previous.start = CAPACITY;
        self.previous.is_marked = false;
    }

    /// Marks the frames of the last walk, until a walk finds other ones.
    #[inline]
    pub fn mark(&mut self) {
        self.previous.is_marked = true;
    }

    /// Whether the frames of the last walk are, with their stack pointers, those that were marked.
    #[inline]
    pub fn is_marked(&self) -> bool {
        self.previous.is_marked
    }

    /// Removes the mark.
    #[inline]
    pub fn unmark(&mut self) {
        self.previous.is_marked = false;
    }

    /// The frames of the last walk, leaf first.
    pub fn frames(&self) -> &[Frame] {
        self.previous.frames.get(self.previous.start..).unwrap_or(&[])
    }

    /// Prepares for a walk that starts at stack pointer `sp`, with modules of this generation.
    pub(crate) fn begin(&mut self, generation: u32, sp: u64) {
        self.others = 0;
        self.chain = RecordChain::new(sp);
        if self.previous.generation != generation {
            self.previous.generation = generation;
            self.forget();
        }
    }

    /// Whether a walk from `leaf` of at most `most` frames would find exactly the frames of the previous one, and reach
    /// the root. Also false if any of the steps was not fast.
    #[inline]
    pub(crate) fn repeats<M: Memory>(&self, leaf: &Leaf<'_>, most: usize, memory: &mut M) -> bool {
        let previous = &self.previous;
        let (slots, frames) = (previous.slots.get(previous.start..), previous.frames.get(previous.start..));
        let (Some([slot, slots @ ..]), Some([frame, frames @ ..])) = (slots, frames) else { return false };
        let by = previous.by.get(previous.start + 1..).unwrap_or(&[]);
        let CachedFrame { slot: leaf_slot, frame: leaf_frame, fp, .. } = CachedFrame::leaf(leaf);
        if *slot != leaf_slot || *frame != leaf_frame || slots.len() >= most {
            return false;
        }
        if !previous.has_root || previous.fast_from > previous.start + 1 {
            return false;
        }
        let goes_by_fp = previous.fp_until > previous.start;
        if goes_by_fp && previous.fps.get(previous.start) != Some(&fp) {
            return false;
        }
        let until = memory.known_until(leaf.sp).saturating_sub(WORD - 1);
        if slots.last().is_some_and(|last| *last >= until) {
            return false;
        }
        // SAFETY: the slots of fast steps ascend from the leaf's stack pointer, and memory is known to be readable
        // from there to the end of the last slot.
        unsafe {
            (!goes_by_fp || previous.fps_that_hold(previous.start + 1..CAPACITY, memory) == slots.len())
                && unchanged(slots, by, Frame::all_bits(frames), memory) == slots.len()
        }
    }

    /// Ends the walk if it found exactly the previous walk's frames from `index` on, and these were all of them.
    #[inline]
    pub(crate) fn end_unchanged(&mut self, index: usize, has_root: bool) -> bool {
        let is_unchanged = index == self.previous.start;
        if is_unchanged {
            self.previous.has_root = has_root;
        }
        is_unchanged
    }

    /// The registers of the current frame when all are tracked, and space for those of its caller.
    pub(crate) fn registers(&mut self) -> &mut [Tracked; 2] {
        &mut self.registers
    }

    /// The same, and space for the rules that lead from one to the other.
    pub(crate) fn all_registers(&mut self) -> (&mut [Tracked; 2], &mut FrameRow) {
        (&mut self.registers, &mut self.row)
    }

    /// What the walk in progress knows about frame records that no call created.
    pub(crate) fn record_chain(&mut self) -> &mut RecordChain {
        &mut self.chain
    }

    /// The previous walk.
    pub(crate) fn previous(&mut self) -> &mut Previous {
        &mut self.previous
    }

    /// The previous walk, and the entries for frames `from..until` of this one.
    pub(crate) fn split(&mut self, from: usize, until: usize) -> (&Previous, &mut [CachedFrame]) {
        (&self.previous, self.noted.get_mut(from..until).unwrap_or_default())
    }

    /// Stores frame number `depth` of the walk in progress.
    #[inline]
    pub(crate) fn note(&mut self, depth: usize, entry: CachedFrame) {
        if let Some(noted) = self.noted.get_mut(depth) {
            *noted = entry;
            if !is_fast(entry.slot) {
                self.others = depth + 1;
            }
        }
    }

    /// How frame number `depth` of the walk in progress was found.
    pub(crate) fn found_by(&self, depth: usize) -> Option<FoundBy> {
        self.noted.get(depth).map(|noted| noted.frame.found_by())
    }

    /// Index at which the previous walk visited frame number `depth`, whose frame pointer is `fp`.
    #[inline]
    pub(crate) fn find_noted(&self, depth: usize, fp: u64) -> Option<usize> {
        let CachedFrame { slot, frame, .. } = *self.noted.get(depth)?;
        if slot == u64::MAX { None } else { self.previous.find(slot, frame.bits(), fp) }
    }

    /// Whether the previous walk had found a frame by scanning at `index` or before.
    #[cold]
    #[inline(never)]
    pub(crate) fn had_guessed(&self, index: usize) -> bool {
        let frames = self.previous.frames.get(self.previous.start..=index).unwrap_or_default();
        frames.iter().any(|frame| frame.found_by() == FoundBy::Guess)
    }

    /// Copies `count` frames of the previous walk, from `index` on, to the walk in progress, from number `depth`
    /// on.
    pub(crate) fn copy(&mut self, depth: usize, index: usize, count: usize) {
        let until = index.saturating_add(count);
        let Some(noted) = self.noted.get_mut(depth..depth.saturating_add(count)) else { return };
        noted.iter_mut().zip(self.previous.entries(index..until)).for_each(|(noted, entry)| *noted = entry);
        // Later frames may have been noted already.
        let others = self.previous.fast_from.min(until);
        if others > index {
            self.others = self.others.max(depth + (others - index));
        }
    }

    /// Marks frame number `depth` as exact.
    pub(crate) fn make_exact(&mut self, depth: usize, fp: Option<u64>) {
        if let Some(entry) = self.noted.get_mut(depth) {
            let frame = Frame::new(entry.frame.address(), entry.frame.found_by(), true);
            *entry = CachedFrame::otherwise(frame, sp(entry.slot), fp);
            self.others = self.others.max(depth + 1);
        }
    }

    /// The frame before number `depth`, if call frame information led from it to number `depth`; with its stack
    /// pointer, and its frame pointer as it is in memory now.
    pub(crate) fn before<M: Memory>(
        &self,
        depth: usize,
        memory: &mut M,
    ) -> Option<(Frame, u64, Option<u64>)> {
        let (last, frames) = self.noted.get(..=depth)?.split_last()?;
        if last.frame.found_by() != FoundBy::Cfi {
            return None;
        }
        let CachedFrame { slot, frame, .. } = *frames.last()?;
        let fp = match frames.iter().rfind(|entry| entry.sets_fp())? {
            entry if is_fast(entry.slot) => Some(memory.read(entry.saved_slot())?),
            entry => (entry.by != CachedFrame::FP_LOST).then_some(entry.fp),
        };
        (slot != u64::MAX).then(|| (frame, sp(slot), fp))
    }

    /// Discards frame number `depth`.
    pub(crate) fn take_back(&mut self, depth: usize) {
        self.others = self.others.min(depth);
    }

    /// Ends the walk: its frames are the first `count` of the walk in progress, followed by those of the previous walk
    /// from `index` on. `has_root`: according to its rule, the last one has no caller.
    #[inline(never)]
    pub(crate) fn end(&mut self, count: usize, index: usize, has_root: bool) {
        let (previous, start) = (&mut self.previous, index.wrapping_sub(count));
        let (Some(noted), Some(frames), Some(slots), Some(by), Some(fps)) = (
            self.noted.get(..count),
            previous.frames.get_mut(start..index),
            previous.slots.get_mut(start..index),
            previous.by.get_mut(start..index),
            previous.fps.get_mut(start..index),
        ) else {
            return self.forget();
        };
        let arrays = frames.iter_mut().zip(slots).zip(by.iter_mut().zip(fps));
        let mut fp_until = 0;
        for (at, (entry, ((frame, slot), (by, fp)))) in noted.iter().zip(arrays).enumerate() {
            (*frame, *slot, *by, *fp) = (entry.frame, entry.slot, entry.by, entry.fp);
            previous.buckets[bucket(entry.slot)] = tag(entry.frame.bits()) | (start + at) as u32;
            fp_until = if entry.rule().on_fp() { start + at } else { fp_until };
        }
        let others_behind = if previous.fast_from > index { previous.fast_from } else { 0 };
        previous.fast_from = others_behind.max(start + self.others);
        // The step to the frame at `index` is the previous walk's.
        if previous.fp_until < index {
            previous.fp_until = fp_until;
        }
        previous.start = start;
        previous.has_root = has_root;
    }
}

impl Previous {
    /// Prefetches what the end of a walk of `frames` frames will write to.
    pub(crate) fn prefetch(&self, frames: usize) {
        let from = CAPACITY.saturating_sub(frames);
        native::prefetch(self.frames.get(from..).unwrap_or(&[]));
        for array in [&self.slots, &self.by, &self.fps] {
            native::prefetch(array.get(from..).unwrap_or(&[]));
        }
        native::prefetch(&self.buckets);
    }

    /// Index of the frame with this slot (as stored: complemented if it is) and these bits.
    #[inline]
    pub(crate) fn find(&self, slot: u64, frame: u64, fp: u64) -> Option<usize> {
        // Stacks resemble each other: a slot often belongs to a different frame.
        let index = (self.buckets[bucket(slot)] ^ tag(frame)) as usize;
        (index < CAPACITY && self.is_hit(index, slot, frame, fp)).then_some(index)
    }

    /// Whether the frame at `index` is this one, with this frame pointer if a later step uses it. Not inlined, so
    /// that the fast path keeps its registers.
    #[inline(never)]
    fn is_hit(&self, index: usize, slot: u64, frame: u64, fp: u64) -> bool {
        index >= self.start
            && self.slots.get(index) == Some(&slot)
            && self.frames.get(index).is_some_and(|at| at.bits() == frame)
            && (index >= self.fp_until || self.fp_at(index) == Some(fp))
    }

    /// The frame pointer at the frame at `index`.
    fn fp_at(&self, index: usize) -> Option<u64> {
        let (_, set) = self.fp_set_by(index)?;
        (is_fast(set.slot) || set.by != CachedFrame::FP_LOST).then_some(set.fp)
    }

    /// The last step up to the frame at `index` that determined the frame pointer: the index that it led to, and
    /// its entry.
    fn fp_set_by(&self, index: usize) -> Option<(usize, CachedFrame)> {
        let range = self.start..index + 1;
        range.clone().zip(self.entries(range)).rev().find(|(_, entry)| entry.sets_fp())
    }

    /// The entries at these indices; empty if out of range.
    fn entries(
        &self,
        range: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = CachedFrame> + ExactSizeIterator<Item = CachedFrame> {
        let [slots, by, fps] =
            [&self.slots, &self.by, &self.fps].map(|array| array.get(range.clone()).unwrap_or(&[]).iter());
        let frames = self.frames.get(range).unwrap_or(&[]).iter();
        let entries = frames.zip(slots).zip(by.zip(fps));
        entries.map(|((&frame, &slot), (&by, &fp))| CachedFrame { slot, frame, by, fp })
    }

    /// Whether the last frame has no caller according to its rule, which depends on that frame alone.
    #[inline]
    pub(crate) fn has_root(&self) -> bool {
        self.has_root
    }

    /// Follows the steps from `index` on for as long as their words are unchanged, at most `most` steps. Returns
    /// the index of the last frame that is certain. Every word that a step depends on is compared.
    #[inline]
    pub(crate) fn follow<M: Memory>(&self, index: usize, most: usize, memory: &mut M) -> usize {
        let (first, end) = (index + 1, CAPACITY.min(index.saturating_add(most).saturating_add(1)));
        let (Some(from), Some(behind)) = (self.slots.get(index), self.slots.get(first..end)) else {
            return index;
        };
        let until = memory.known_until(sp(*from)).saturating_sub(WORD - 1);
        // Slots ascend along fast steps, so the last one is the upper bound.
        let all_known = first >= self.fast_from && behind.last().is_none_or(|last| *last < until);
        let known =
            if all_known { behind } else { behind.split(|slot| *slot >= until).next().unwrap_or(&[]) };
        let known = first + known.len();
        // SAFETY: the steps are fast and their slots less than `until`. The slot at `from` is in known memory, which
        // extends at least to the end of each of these words.
        let known = first + unsafe { self.fps_that_hold(first..known, memory) };
        let (slots, by) = (self.slots.get(first..known), self.by.get(first..known));
        let frames = Frame::all_bits(self.frames.get(first..known).unwrap_or(&[]));
        // SAFETY: the slots and their steps are a part of those above.
        index + unsafe { unchanged(slots.unwrap_or(&[]), by.unwrap_or(&[]), frames, memory) }
    }

    /// Returns how many of the steps to the frames at these indices, counted from the first, still find the same saved
    /// frame pointer. Frame pointers that no step uses are not compared.
    ///
    /// # Safety
    /// The steps must be fast, and memory must be known to be readable from the stack pointer of the frame before the
    /// first index to the end of the word at the last slot.
    #[inline]
    unsafe fn fps_that_hold<M: Memory>(&self, range: Range<usize>, memory: &mut M) -> usize {
        let wanted = range.start..self.fp_until.min(range.end);
        let (Some(slots), Some(by), Some(fps)) =
            (self.slots.get(wanted.clone()), self.by.get(wanted.clone()), self.fps.get(wanted.clone()))
        else {
            return range.len();
        };
        // SAFETY: the caller guarantees readable memory, and the frame pointer was saved between the stack pointer of
        // the frame before and the slot.
        let held = unsafe { fps_unchanged(slots, by, fps, memory) };
        if held == wanted.len() { range.len() } else { held }
    }

    /// The frame at index `last`, to which [`follow`](Self::follow) has led from `index`, where the frame pointer is
    /// `fp`. The walk continues from there with a step of its own, so the frame pointer is read again and the entry
    /// that restored it updated.
    pub(crate) fn arrive<M: Memory>(
        &mut self,
        index: usize,
        last: usize,
        fp: u64,
        memory: &mut M,
    ) -> Option<CommonFrame> {
        let (set, entry) = self.fp_set_by(last)?;
        let (mut by, mut fp) = (entry.by, fp);
        if set > index {
            fp = memory.read(entry.saved_slot())?;
        } else if !is_fast(entry.slot) {
            by = CachedFrame::FP_KNOWN;
        }
        (*self.by.get_mut(set)?, *self.fps.get_mut(set)?) = (by, fp);
        let last = self.entries(last..last + 1).next()?;
        Some(CommonFrame { frame: last.frame, sp: sp(last.slot), fp })
    }
}

/// Neighbouring frames get neighbouring buckets. Stack pointers at calls are multiples of 16.
#[inline]
fn bucket(slot: u64) -> usize {
    (slot >> 4) as usize % BUCKETS
}

/// The bits above the index in [`Previous::buckets`].
#[inline]
fn tag(frame: u64) -> u32 {
    (frame as u32) << CAPACITY.ilog2()
}
