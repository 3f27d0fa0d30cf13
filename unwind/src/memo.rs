//! What a thread's previous walk found, and which words of memory it found it by.
//!
//! A step by a simple rule is a pure function of the frame it starts from, the loaded modules, and one or two words: the
//! return address and, where the function saved it, the caller's frame pointer. So a walk that comes to a frame the
//! previous one came to (same address, stack pointer and frame pointer) goes on as that one did for as long as those
//! words are what they were. They are compared, with no lookup and, unlike in a walk, with no load waiting for the one
//! before: this is what makes it fast. Nothing else is believed, so it does not matter what happened to the stack in
//! between: a return, a `longjmp`, another coroutine, another thread.
//!
//! All other steps (over signal frames, by expressions, from stack to stack, by guessing, with all registers) are
//! made anew in each walk. A new generation of the modules forgets everything.
//!
//! A saved frame pointer has to be compared only if a step further out goes by it, which in most code none does. Of frames
//! that several walks have come to, it is found out how far out such a step is ([`Settled`]). Behind it nothing but return
//! addresses is compared, and what is known of frame pointers may be old: it is read again where a walk goes on from such
//! a frame by a step of its own.
//!
//! A memo takes 90 KiB of addresses per thread. The ends of its arrays that are in use lie together, so that a thread
//! with stacks of fifty frames touches five pages, and one more when they come again.

use crate::exact::Tracked;
use crate::frame::Frame;
use crate::memory::Memory;
use crate::repeat::{Repeat, Step, unchanged};
use crate::rule_cache::{RuleCache, SimpleRule};
use crate::rules::Rules;
use crate::x86_64::{Registers, WORD};

/// Most frames of one walk.
const CAPACITY: usize = 1024;
/// Places by stack pointer.
const PLACES: usize = 512;

/// A frame and how it was reached, as the next walk compares it.
///
/// In an entry of a simple step (and the words of no other are read from memory):
/// - `slot` is not below the stack pointer of the frame before, so that slots grow along a run of simple steps;
/// - `saved_slot` lies from there up to `slot`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Entry {
    /// Where the frame's return address is: the word below its stack pointer. Complemented, which makes it greater than
    /// any address, if the step was not simple.
    slot: u64,
    /// The frame: after a simple step the very word in `slot`.
    frame: Frame,
    /// Where the frame pointer was loaded from; `slot` if it is that of the frame before.
    saved_slot: u64,
    /// The word there, as it was when a walk last read or compared it.
    saved: u64,
}

impl Entry {
    const NOTHING: Entry = Entry { slot: u64::MAX, frame: Frame::from_bits(0), saved_slot: 0, saved: 0 };
    /// In `saved_slot`, after a step that was not simple: `saved` is the frame pointer, or that is lost.
    const FP_KNOWN: u64 = 0;
    const FP_LOST: u64 = 1;

    /// A simple step from a frame at `sp`. The words are the return address and the one in `saved_slot`.
    ///
    /// None if the places are not those of a simple step.
    #[inline]
    pub(crate) fn simple(sp: u64, slot: u64, address: u64, saved_slot: u64, saved: u64) -> Option<Self> {
        let entry = Self { slot, frame: Frame::from_bits(address), saved_slot, saved };
        (sp <= saved_slot && saved_slot <= slot && slot < 1 << 63).then_some(entry)
    }

    /// As [`simple`](Self::simple), unchecked.
    ///
    /// # Safety
    /// The places are those of a simple step: the stack pointer before is not above `saved_slot`, nor that above `slot`,
    /// which is less than 2^63.
    #[inline]
    pub(crate) unsafe fn simple_unchecked(slot: u64, address: u64, saved_slot: u64, saved: u64) -> Self {
        Self { slot, frame: Frame::from_bits(address), saved_slot, saved }
    }

    /// A frame that was reached otherwise. It can be found if its stack pointer is an address of user space.
    pub(crate) fn otherwise(frame: Frame, sp: u64, fp: Option<u64>) -> Self {
        let slot = sp.wrapping_sub(WORD);
        let slot = if slot < 1 << 63 { !slot } else { u64::MAX };
        let saved_slot = if fp.is_some() { Self::FP_KNOWN } else { Self::FP_LOST };
        Self { slot, frame, saved_slot, saved: fp.unwrap_or(0) }
    }

    #[inline]
    fn is_simple(&self) -> bool {
        self.slot < 1 << 63
    }

    /// The frame's stack pointer.
    fn sp(&self) -> u64 {
        let slot = if self.is_simple() { self.slot } else { !self.slot };
        slot.wrapping_add(WORD)
    }
}

/// The walk before, as the next one compares it.
#[repr(C)]
pub(crate) struct Previous {
    /// Its frames, leaf first, up to the end of the array. They begin at `start`.
    frames: [Frame; CAPACITY],
    entries: [Entry; CAPACITY],
    /// Where in `entries` a frame may be, by the bits of `slot`: the place and behind it the frame's lowest bits.
    places: [u32; PLACES],
    settled: Settled,
    start: usize,
    /// All steps to the frames from here on are simple ones.
    simple_from: usize,
    /// The rule of the last frame says that there is no caller.
    has_root: bool,
}

/// What is known of the outer frames, those that several walks have come to.
#[repr(C)]
struct Settled {
    /// Up to the end of the array, [`Entry::slot`] of each frame from `from` on.
    slots: [u64; CAPACITY],
    from: usize,
    /// No simple step from a frame at this place or behind it goes by the frame pointer.
    fp_until: usize,
}

/// The memory of one thread's walks.
#[repr(C)]
pub struct Memo {
    previous: Previous,
    generation: u32,
    /// Of the walk under way, frames up to the last that a step other than a simple one led to.
    others: usize,
    /// The walk before, if it was the same as that before it.
    repeat: Repeat,
    /// The walk under way, leaf first.
    noted: [Entry; CAPACITY],
    /// Two sets of registers for the steps that need all of them: a handler's stack has no room for them.
    registers: [Tracked; 2],
}

impl Default for Memo {
    fn default() -> Self {
        Self::new()
    }
}

/// A frame that both walks came to.
#[derive(Clone, Copy)]
pub(crate) struct Met {
    pub(crate) frame: Frame,
    pub(crate) sp: u64,
    pub(crate) fp: u64,
}

impl Memo {
    /// Most frames of one walk.
    pub const CAPACITY: usize = CAPACITY;

    /// Without a previous walk. A zeroed memo that is told to [`forget`](Self::forget) is one too.
    pub const fn new() -> Self {
        Self {
            previous: Previous {
                frames: [Frame::from_bits(0); CAPACITY],
                entries: [Entry::NOTHING; CAPACITY],
                places: [0; PLACES],
                settled: Settled { slots: [u64::MAX; CAPACITY], from: CAPACITY, fp_until: 0 },
                start: CAPACITY,
                simple_from: CAPACITY,
                has_root: false,
            },
            generation: 0,
            others: 0,
            repeat: Repeat::new(),
            noted: [Entry::NOTHING; CAPACITY],
            registers: [Tracked::NOTHING; 2],
        }
    }

    /// Forgets the previous walk. Nothing of the arrays is touched.
    pub fn forget(&mut self) {
        self.previous.start = CAPACITY;
        self.previous.settled.from = CAPACITY;
        self.repeat.forget();
    }

    /// The frames of the last walk, leaf first.
    pub fn frames(&self) -> &[Frame] {
        self.previous.frames.get(self.previous.start..).unwrap_or(&[])
    }

    /// Prepares for a walk of modules of this generation.
    pub(crate) fn begin(&mut self, generation: u32) {
        self.others = 0;
        if self.generation != generation {
            self.generation = generation;
            self.forget();
        }
    }

    /// Whether a walk from `leaf` of no more than `most` frames comes to the root by the very frames of the previous one.
    #[inline]
    pub(crate) fn repeats<M: Memory>(&self, leaf: &Registers, most: usize, memory: &mut M) -> bool {
        self.repeat.repeats(leaf, memory) && self.frames().len() <= most
    }

    /// Ends the walk from `leaf` if its frames are those of the previous one from `place` on and these were all.
    #[inline]
    pub(crate) fn end_unchanged(
        &mut self,
        place: usize,
        has_root: bool,
        leaf: &Registers,
        rules: Rules<'_>,
    ) -> bool {
        let previous = &mut self.previous;
        if place != previous.start {
            return false;
        }
        previous.has_root = has_root;
        if self.repeat.is_empty() && previous.has_root && previous.simple_from <= place + 1 {
            self.repeat.list(leaf, previous.steps(rules));
        }
        true
    }

    /// The registers of the frame that a walk with all of them has come to, and room for those of its caller.
    pub(crate) fn registers(&mut self) -> &mut [Tracked; 2] {
        &mut self.registers
    }

    /// The walk before.
    pub(crate) fn previous(&mut self) -> &mut Previous {
        &mut self.previous
    }

    /// The walk before, and where the frames from number `from` to before number `until` of this one are to be noted.
    pub(crate) fn split(&mut self, from: usize, until: usize) -> (&Previous, &mut [Entry]) {
        (&self.previous, self.noted.get_mut(from..until).unwrap_or_default())
    }

    /// Notes a frame as number `depth` of the walk under way.
    #[inline]
    pub(crate) fn note(&mut self, depth: usize, entry: Entry) {
        if let Some(place) = self.noted.get_mut(depth) {
            *place = entry;
            if !entry.is_simple() {
                self.others = depth + 1;
            }
        }
    }

    /// Where the previous walk came to the frame noted as number `depth`, whose frame pointer is `fp`.
    #[inline]
    pub(crate) fn find_noted(&self, depth: usize, fp: u64) -> Option<usize> {
        let Entry { slot, frame, .. } = *self.noted.get(depth)?;
        if slot == u64::MAX { None } else { self.previous.find(slot, frame.bits(), fp) }
    }

    /// Notes `count` frames of the previous walk, those from `place` on, from number `depth` on.
    pub(crate) fn copy(&mut self, depth: usize, place: usize, count: usize) {
        let noted = self.noted.get_mut(depth..depth.saturating_add(count));
        let entries = self.previous.entries.get(place..place.saturating_add(count));
        if let (Some(noted), Some(entries)) = (noted, entries) {
            noted.copy_from_slice(entries);
            // Frames behind these may be noted already.
            let others = self.previous.simple_from.min(place + count);
            if others > place {
                self.others = self.others.max(depth + (others - place));
            }
        }
    }

    /// Makes the frame noted as number `depth` an exact one.
    pub(crate) fn make_exact(&mut self, depth: usize, fp: Option<u64>) {
        if let Some(entry) = self.noted.get_mut(depth) {
            let frame = Frame::new(entry.frame.address(), entry.frame.found_by(), true);
            *entry = Entry::otherwise(frame, entry.sp(), fp);
            self.others = self.others.max(depth + 1);
        }
    }

    /// Ends the walk: its frames are the first `count` noted and, behind them, those of the previous walk from `place` on.
    /// `has_root` says that the rule of the last one knows of no caller.
    #[inline(never)]
    pub(crate) fn end(&mut self, count: usize, place: usize, has_root: bool, rules: Rules<'_>) {
        self.repeat.forget();
        self.previous.settle_from(place, rules);
        let (previous, start) = (&mut self.previous, place.wrapping_sub(count));
        let (Some(noted), Some(frames), Some(entries)) = (
            self.noted.get(..count),
            previous.frames.get_mut(start..place),
            previous.entries.get_mut(start..place),
        ) else {
            return self.forget();
        };
        for (at, ((noted, frame), entry)) in noted.iter().zip(frames).zip(entries).enumerate() {
            let Entry { slot, frame: noted_frame, saved_slot, saved } = *noted;
            *frame = noted_frame;
            *entry = Entry { slot, frame: noted_frame, saved_slot, saved };
            previous.places[index(slot)] = tag(noted_frame.bits()) | (start + at) as u32;
        }
        let others_behind = if previous.simple_from > place { previous.simple_from } else { 0 };
        previous.simple_from = others_behind.max(start + self.others);
        previous.start = start;
        previous.has_root = has_root;
    }
}

impl Previous {
    /// Whether there was none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.start == CAPACITY
    }

    /// Where the walk came to the frame with this slot (complemented if so) and these bits.
    #[inline]
    pub(crate) fn find(&self, slot: u64, frame: u64, fp: u64) -> Option<usize> {
        // Stacks are alike: a slot is often that of another frame.
        let place = (self.places[index(slot)] ^ tag(frame)) as usize;
        (place < CAPACITY && self.is_met(place, slot, frame, fp)).then_some(place)
    }

    /// Whether the frame at `place` is this one and, with this frame pointer or any if it does not matter, of the walk.
    /// Apart, so that the hot loop keeps its registers.
    #[inline(never)]
    fn is_met(&self, place: usize, slot: u64, frame: u64, fp: u64) -> bool {
        place >= self.start
            && self.entries.get(place).is_some_and(|entry| entry.slot == slot && entry.frame.bits() == frame)
            && (place >= self.fp_needed_until() || self.fp_at(place) == Some(fp))
    }

    /// Behind this place frame pointers do not matter.
    #[inline]
    fn fp_needed_until(&self) -> usize {
        self.settled.from.max(self.settled.fp_until)
    }

    /// Settles what is known of the frames from `place` on, which two walks have come to.
    #[inline]
    fn settle_from(&mut self, place: usize, rules: Rules<'_>) {
        if place >= self.settled.from {
            // What was settled before is no longer among the frames.
            self.settled.from = place;
        } else {
            self.settle(place, rules);
        }
    }

    #[inline(never)]
    fn settle(&mut self, place: usize, rules: Rules<'_>) {
        let from = self.settled.from;
        if from == CAPACITY {
            self.settled.fp_until = 0;
        }
        let froms = self.entries.iter().zip(&mut self.settled.slots).enumerate().take(from).skip(place);
        for (at, (entry, slot)) in froms {
            *slot = entry.slot;
            let is_left_simply = self.entries.get(at + 1).is_some_and(Entry::is_simple);
            if is_left_simply && may_go_by_fp(entry.frame, rules) {
                self.settled.fp_until = self.settled.fp_until.max(at + 1);
            }
        }
        self.settled.from = place;
    }

    /// The frame pointer of a frame.
    fn fp_at(&self, place: usize) -> Option<u64> {
        let entries = self.entries.get(self.start..=place)?;
        let set = entries.iter().rev().find(|entry| entry.saved_slot != entry.slot)?;
        (set.is_simple() || set.saved_slot != Entry::FP_LOST).then_some(set.saved)
    }

    /// All steps, which are simple ones.
    fn steps(&self, rules: Rules<'_>) -> impl Iterator<Item = Step> {
        let froms = self.entries.iter().skip(self.start);
        froms.clone().zip(froms.skip(1)).map(move |(from, to)| {
            let saved = (to.saved_slot != to.slot).then_some((to.saved_slot, to.saved));
            Step { address: (to.slot, to.frame.bits()), saved, by_fp: may_go_by_fp(from.frame, rules) }
        })
    }

    /// Whether the rule of the last frame says that there is no caller: that follows from the frame alone.
    #[inline]
    pub(crate) fn has_root(&self) -> bool {
        self.has_root
    }

    /// How far the steps from `place` on hold, but for no more than `most` steps: the last frame that is certain. Every
    /// word they hang on is compared.
    #[inline]
    pub(crate) fn follow<M: Memory>(&self, place: usize, most: usize, memory: &mut M) -> usize {
        let end = CAPACITY.min(place.saturating_add(most).saturating_add(1));
        let (Some(from), Some(behind)) = (self.entries.get(place), self.entries.get(place + 1..end)) else {
            return place;
        };
        let until = memory.known_until(from.sp()).saturating_sub(WORD - 1);
        // Slots grow along simple steps: what is said of the last applies to all.
        let all_known = place + 1 >= self.simple_from && behind.last().is_none_or(|last| last.slot < until);
        let known = if all_known {
            behind.len()
        } else {
            behind.iter().take_while(|entry| entry.slot < until).count()
        };
        let first = place + 1;
        let (end, apart) = (first + known, self.fp_needed_until().max(first).min(first + known));
        // SAFETY: the steps are simple and their slots less than `until`. `from` is in known memory, which reaches at least
        // up to the slots and their seven bytes. The two words of a step lie between the stack pointer of the frame before,
        // to which the same applies, and there.
        let mut holds = |slot: u64, word: u64| unsafe { memory.load(slot) == word };
        let whole = self.entries.get(first..apart).unwrap_or(&[]);
        let held = while_holding(whole, |entry| {
            holds(entry.slot, entry.frame.bits()) && holds(entry.saved_slot, entry.saved)
        });
        if held < whole.len() {
            return place + held;
        }
        let slots = self.settled.slots.get(apart..end).unwrap_or(&[]);
        let frames = Frame::all_bits(self.frames.get(apart..end).unwrap_or(&[]));
        // SAFETY: as above.
        place + held + unsafe { unchanged(slots, frames, memory) }
    }

    /// The frame at `last`, to which [`follow`](Self::follow) has led from `place`, where the frame pointer is `fp`. A step
    /// of the walk's own is made from there: what is known of its frame pointer is what it is.
    pub(crate) fn arrive<M: Memory>(
        &mut self,
        place: usize,
        last: usize,
        fp: u64,
        memory: &mut M,
    ) -> Option<Met> {
        let entries = self.entries.get_mut(self.start..=last)?;
        let sets_fp = |entry: &Entry| entry.saved_slot != entry.slot;
        let set = entries.iter().rposition(sets_fp)?;
        let (is_behind, set) = (self.start + set > place, entries.get_mut(set)?);
        if is_behind {
            set.saved = memory.read(set.saved_slot)?;
        } else {
            if !set.is_simple() {
                set.saved_slot = Entry::FP_KNOWN;
            }
            set.saved = fp;
        }
        let fp = set.saved;
        let entry = self.entries.get(last)?;
        Some(Met { frame: entry.frame, sp: entry.sp(), fp })
    }
}

/// Whether a simple step from `frame` goes by the frame pointer; true if the rule is not at hand.
#[inline]
fn may_go_by_fp(frame: Frame, rules: Rules<'_>) -> bool {
    let address = frame.lookup_address().wrapping_add(1);
    address > RuleCache::MOST || rules.simple(address).is_none_or(SimpleRule::on_fp)
}

/// How many entries, from the first on, hold. Two at a time: the loop's own instructions are a third of it.
#[inline(always)]
fn while_holding(entries: &[Entry], mut holds: impl FnMut(&Entry) -> bool) -> usize {
    let (pairs, _) = entries.as_chunks();
    let pairs_hold = pairs.iter().position(|[first, second]| !(holds(first) && holds(second)));
    let held = 2 * pairs_hold.unwrap_or(pairs.len());
    let rest = entries.get(held..).unwrap_or(&[]);
    held + rest.iter().position(|entry| !holds(entry)).unwrap_or(rest.len())
}

/// Neighbouring frames get neighbouring places. Stack pointers between calls are multiples of 16.
#[inline]
fn index(slot: u64) -> usize {
    (slot >> 4) as usize % PLACES
}

/// What stands behind a place in [`Previous::places`].
#[inline]
fn tag(frame: u64) -> u32 {
    (frame as u32) << CAPACITY.ilog2()
}
