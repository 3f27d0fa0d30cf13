//! Walks over the frames of one thread that were made before: what they have found, and the words that it depends on.
//!
//! If every allocation is recorded, most have the Python frames of an earlier one, apart from the instructions that they execute.
//! A walk finds the same again if all words are unchanged that it would read in the structures that link frames, and in the code
//! objects. Comparing these takes a fraction of a walk's time. Only walks whose frames were all certainly alive are kept (`trust`),
//! with the words that this depends on, and these are compared before what they vouch for is read. Of a thread with several states
//! none are.
//!
//! What must never happen here: reading an object before all is compared that keeps it alive.

use platform::arch::{load, load_field};
use platform::bounds::Bounds;
use python_layout::{Linkage, OWN, REFERENCE_FLAGS};
use unwind::{Frame, Interpreted, mix};

use super::codes::{Codes, Place};
use super::data_stack;
use super::descriptor::Python;
use super::thread::{Calls, Thread};
use crate::found::{self, Found};
use crate::memory::Memory;

/// Walks that are kept, a power of two.
const WALKS: usize = 16;
/// Most words that a walk depends on, beside those of its frames.
const WORDS: usize = 40;
/// Most frames of a walk.
const FRAMES: usize = 64;

/// The walks of one thread. All zeros when empty.
pub struct KnownWalks {
    /// The thread's state; 0 if that is not known.
    state: u64,
    /// The newest state of the only interpreter, when the thread had no other one.
    newest: u64,
    /// By where they begin.
    walks: [KnownWalk; WALKS],
}

/// Where a walk begins.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Beginning {
    /// The nonce of the region for which the function numbers are valid; 0 if the walk is not kept.
    nonce: u64,
    /// The thread state.
    state: u64,
    /// What the thread state names: a frame or a `_PyCFrame`.
    first: u64,
    /// The innermost frame.
    innermost: u64,
    /// The end of what is used of the data stack.
    top: u64,
}

/// A walk that was made before. All zeros for none.
struct KnownWalk {
    beginning: Beginning,
    /// Calls of the evaluation loop on the native stack.
    evaluations: usize,
    /// The newest chunk of the data stack.
    chunk: Bounds,
    /// The part of the native stack on which something is compared: the lowest address, and the end of the stack.
    native: Bounds,
    /// The hash of the runs that were found.
    of_runs: u64,
    /// The hash of all that was found; stale if a frame has changed since.
    hash: u64,
    is_stale: bool,
    words: Listed<Word, WORDS>,
    /// In the order in which they may be read: those on the data stack from its start, then all others from the innermost on.
    frames: Listed<KnownFrame, FRAMES>,
    /// What is recorded of each, innermost first.
    recorded: Listed<u64, FRAMES>,
}

/// Some entries of an array.
struct Listed<T, const MOST: usize> {
    entries: [T; MOST],
    count: usize,
}

/// Bits of a word, and their value.
#[derive(Clone, Copy)]
struct Word {
    address: u64,
    mask: u64,
    value: u64,
}

#[derive(Clone, Copy)]
struct KnownFrame {
    address: u64,
    /// The reference to its code.
    code: u64,
    /// The frame that follows.
    previous: u64,
    /// Its number from the innermost one.
    number: u8,
    /// Where its code is kept.
    place: Place,
    /// The byte that identifies its owner.
    owner: u8,
}

impl<T, const MOST: usize> Listed<T, MOST> {
    fn push(&mut self, new: T) -> Option<()> {
        *self.entries.get_mut(self.count)? = new;
        self.count += 1;
        Some(())
    }

    fn all(&self) -> &[T] {
        self.entries.get(..self.count).unwrap_or(&[])
    }

    fn all_mut(&mut self) -> &mut [T] {
        self.entries.get_mut(..self.count).unwrap_or(&mut [])
    }
}

impl Word {
    /// These bits as they are now.
    ///
    /// # Safety
    /// The word must be mapped.
    #[inline]
    unsafe fn load(&self) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { load(self.address) & self.mask }
    }
}

impl KnownWalks {
    /// Forgets what belonged to another thread.
    pub fn reset(&mut self) {
        self.state = 0;
    }

    /// The hash of the frames that a walk would find now; `None` if only a walk can tell.
    #[inline]
    pub(crate) fn find(&mut self, thread: &Thread<'_>, calls: Calls, codes: &Codes) -> Option<u64> {
        let (python, state) = (thread.python, self.state);
        let layout = &python.layout;
        let (first, interpreter) = python.interpreters();
        if state == 0 || !calls.any || !calls.is_settled || first != interpreter || python.is_finalizing() {
            return None;
        }
        // SAFETY: the only interpreter, which is not finalizing (`trust`). Since then no state has been added to its list.
        if unsafe { load_field(interpreter, layout.interpreter_threads) } != self.newest {
            return None;
        }
        let is_attached = || python.is_attached(thread.pointer, state);
        // SAFETY: the newest state of the list, which was the thread's.
        let is_newest = || unsafe { load_field(state, layout.thread_id) } == thread.pointer;
        let is_own = match state == self.newest && layout.linkage != Linkage::Entries {
            true => is_newest(),
            false => is_attached(),
        };
        if !is_own {
            return None;
        }
        // SAFETY: fields of the thread's state.
        let of_state = |offset| unsafe { load_field(state, offset) };
        let (first, top) = (of_state(layout.thread_frame), of_state(layout.thread_chunk + 8));
        let innermost = match layout.linkage {
            Linkage::Entries => first,
            _ if !thread.stack.hold(first.wrapping_add(layout.c_frame_current.into())) => return None,
            // SAFETY: on the thread's stack.
            _ => unsafe { load_field(first, layout.c_frame_current) },
        };
        let beginning = Beginning { nonce: thread.region.nonce(), state, first, innermost, top };
        let walk = self.walks.get_mut(beginning.place())?;
        let is_same = walk.beginning == beginning
            && walk.evaluations == calls.evaluations
            && walk.native.high == thread.stack.high
            && walk.native.low >= thread.stack.low
            // SAFETY: the state is the thread's own, and the interpreter is not finalizing.
            && unsafe { walk.is_unchanged(python, codes) };
        is_same.then_some(walk.hash)
    }

    /// Keeps the walk that has just found all frames of the thread. `state` is the thread's only one, and `newest` the newest of the
    /// only interpreter.
    pub(crate) fn keep(
        &mut self,
        thread: &Thread<'_>,
        calls: Calls,
        found: &Found,
        ((state, newest), codes): ((u64, u64), &Codes),
        memory: &mut Memory<'_>,
    ) -> Option<()> {
        let layout = &thread.python.layout;
        if !calls.is_settled || layout.thread_chunk == 0 || thread.stack == Bounds::NONE {
            return None;
        }
        if state != newest && !thread.python.is_attached(thread.pointer, state) {
            return None;
        }
        (self.state, self.newest) = (state, newest);
        let first = memory.field(state, layout.thread_frame)?;
        let top = memory.field(state, layout.thread_chunk + 8)?;
        let innermost = match layout.linkage {
            Linkage::Entries => first,
            _ => memory.field(first, layout.c_frame_current)?,
        };
        let beginning = Beginning { nonce: thread.region.nonce(), state, first, innermost, top };
        let walk = self.walks.get_mut(beginning.place())?;
        walk.beginning = Beginning::default();
        (walk.words.count, walk.frames.count, walk.recorded.count) = (0, 0, 0);
        walk.native = Bounds { low: thread.stack.high, high: thread.stack.high };
        walk.read(thread, beginning, codes, memory)?;
        if walk.recorded.all() != found.all() || !walk.is_certain(beginning, codes, memory)? {
            return None;
        }
        walk.evaluations = calls.evaluations;
        walk.of_runs = found.hash_of_runs();
        (walk.hash, walk.is_stale) = (found.hash(), false);
        walk.beginning = beginning;
        Some(())
    }
}

impl Beginning {
    fn place(self) -> usize {
        let Self { first, innermost, top, .. } = self;
        mix(mix(first, innermost), top) as usize % WALKS
    }
}

impl KnownWalk {
    /// Notes a word that the walk depends on.
    fn depend(&mut self, base: u64, offset: u16, memory: &mut Memory<'_>) -> Option<u64> {
        self.depend_on_bits(base, offset, u64::MAX, memory)
    }

    /// Notes a small field, at most a word from where it begins.
    #[inline(never)]
    fn depend_on_bits(&mut self, base: u64, offset: u16, mask: u64, memory: &mut Memory<'_>) -> Option<u64> {
        let (address, shift) = (base.checked_add((offset & !7).into())?, u32::from(offset % 8 * 8));
        let (value, mask) = (memory.word(address)?, mask << shift);
        self.words.push(Word { address, mask, value: value & mask })?;
        Some((value & mask) >> shift)
    }

    /// Reads the frames and the words again that lead to them.
    fn read(
        &mut self,
        thread: &Thread<'_>,
        Beginning { state, first, innermost, .. }: Beginning,
        codes: &Codes,
        memory: &mut Memory<'_>,
    ) -> Option<()> {
        let layout = &thread.python.layout;
        let low = self.depend(state, layout.thread_chunk, memory)?;
        self.chunk = Bounds { low, high: low.checked_add(self.depend(low, data_stack::SIZE, memory)?)? };
        self.depend(low, 0, memory)?;
        if layout.linkage != Linkage::Entries {
            self.c_frames(thread, state, first, memory)?;
        }
        // Neither being entered nor being left, in 3.11.
        let runs = u64::from(u32::MAX);
        if layout.linkage == Linkage::CFrames
            && self.depend_on_bits(innermost, layout.frame_stack_top, runs, memory)? != runs
        {
            return None;
        }
        let mut frame = innermost;
        while frame != 0 {
            let owner = memory.word(frame.checked_add((layout.frame_owner & !7).into())?)?;
            let owner = (owner >> (layout.frame_owner % 8 * 8)) as u8;
            frame = match layout.linkage != Linkage::CFrames && owner >= OWN {
                true => self.own_frame(thread, frame, memory)?,
                false => self.frame(thread.python, frame, owner, codes, memory)?,
            };
        }
        Some(())
    }

    /// Reads the `_PyCFrame`s.
    fn c_frames(
        &mut self,
        thread: &Thread<'_>,
        state: u64,
        first: u64,
        memory: &mut Memory<'_>,
    ) -> Option<()> {
        let layout = &thread.python.layout;
        let mut c_frame = first;
        while !super::frames::is_in(state, c_frame) {
            if !thread.stack.hold(c_frame) {
                return None;
            }
            self.native.low = self.native.low.min(c_frame);
            self.depend(c_frame, layout.c_frame_current, memory)?;
            c_frame = self.depend(c_frame, layout.c_frame_previous, memory)?;
        }
        // What the outermost one names follows the last run.
        self.depend(c_frame, layout.c_frame_current, memory)?;
        Some(())
    }

    /// Reads a frame that belongs to a call of the evaluation loop. Returns the next one.
    fn own_frame(&mut self, thread: &Thread<'_>, frame: u64, memory: &mut Memory<'_>) -> Option<u64> {
        let layout = &thread.python.layout;
        if !thread.stack.hold(frame) {
            return None;
        }
        self.native.low = self.native.low.min(frame);
        self.depend_on_bits(frame, layout.frame_owner, u8::MAX.into(), memory)?;
        self.depend(frame, layout.frame_previous, memory)
    }

    /// Reads another frame. Returns the next one.
    #[inline(never)]
    fn frame(
        &mut self,
        python: &Python,
        frame: u64,
        owner: u8,
        codes: &Codes,
        memory: &mut Memory<'_>,
    ) -> Option<u64> {
        let layout = &python.layout;
        let code = memory.field(frame, layout.frame_code)?;
        let address = code & !REFERENCE_FLAGS;
        let place = codes.place(address)?;
        let (_, function) = codes.at(place, address)?;
        let offset = layout.instruction(memory.field(frame, layout.frame_instruction)?, address)?;
        let recorded = Frame::interpreted(Interpreted { function: *function, offset }).bits();
        let previous = memory.field(frame, layout.frame_previous)?;
        let number = self.recorded.count as u8;
        self.recorded.push(recorded)?;
        self.frames.push(KnownFrame { address: frame, code, previous, number, place, owner })?;
        if self.chunk.hold(frame) {
            self.frames.all_mut().rotate_right(1);
        }
        Some(previous)
    }

    /// Whether the innermost frame is complete, because the frames of the newest chunk follow each other from its start up to that
    /// one, which lies in its used part.
    fn is_certain(
        &self,
        Beginning { innermost, top, .. }: Beginning,
        codes: &Codes,
        memory: &mut Memory<'_>,
    ) -> Option<bool> {
        let is_first = memory.word(self.chunk.low)? == 0;
        let mut end = data_stack::start(self.chunk.low, is_first);
        let on_data_stack = self.frames.all().iter().take_while(|known| self.chunk.hold(known.address));
        let mut last = 0;
        for known in on_data_stack {
            if known.address != end {
                return Some(false);
            }
            last = known.address;
            end = known
                .address
                .checked_add(codes.at(known.place, known.code())?.0.words.checked_mul(8)?.into())?;
        }
        Some(last == innermost && innermost < top && top <= self.chunk.high)
    }

    /// Whether a walk would find the same frames. Notes the instructions that they execute now.
    ///
    /// # Safety
    /// The walk must begin where this one did, with the thread's own state, whose interpreter is not finalizing.
    #[inline]
    unsafe fn is_unchanged(&mut self, python: &Python, codes: &Codes) -> bool {
        for word in self.words.all() {
            // SAFETY: the first words lie in the state, the next in the chunk that it names, all others on the thread's stack, except
            // for the last of the `_PyCFrame`s, which is in the state.
            if unsafe { word.load() } != word.value {
                return false;
            }
        }
        for known in self.frames.all() {
            // SAFETY: those of the chunk below the innermost one are complete, and that one as well since they end there: the place
            // of each depends on the ones before (`trust`). To each of the others a complete one refers.
            let Some(frame) = (unsafe { known.recorded(python, codes) }) else { return false };
            if let Some(recorded) = self.recorded.entries.get_mut(usize::from(known.number))
                && *recorded != frame
            {
                *recorded = frame;
                self.is_stale = true;
            }
        }
        if self.is_stale {
            self.hash = found::hash(self.recorded.all().iter().copied(), self.of_runs);
            self.is_stale = false;
        }
        true
    }
}

impl KnownFrame {
    /// The address of its code.
    #[inline]
    fn code(&self) -> u64 {
        self.code & !REFERENCE_FLAGS
    }

    /// What is recorded of it now; `None` if it is not the same frame of the same function.
    ///
    /// # Safety
    /// The frame must be complete.
    #[inline(always)]
    unsafe fn recorded(&self, python: &Python, codes: &Codes) -> Option<u64> {
        let layout = &python.layout;
        // SAFETY: fields of a complete frame.
        let of_frame = |offset: u16| unsafe { load_field(self.address, offset) };
        let owner = (of_frame(layout.frame_owner & !7) >> (layout.frame_owner % 8 * 8)) as u8;
        let is_same = of_frame(layout.frame_code) == self.code
            && of_frame(layout.frame_previous) == self.previous
            && owner == self.owner;
        if !is_same {
            return None;
        }
        let (code, function) = codes.at(self.place, self.code())?;
        // SAFETY: the code object of a complete frame, whose thread is paused.
        if !unsafe { code.is_unchanged(python) && code.has_its_words(python) } {
            return None;
        }
        let offset = layout.instruction(of_frame(layout.frame_instruction), self.code())?;
        Some(Frame::interpreted(Interpreted { function: *function, offset }).bits())
    }
}
