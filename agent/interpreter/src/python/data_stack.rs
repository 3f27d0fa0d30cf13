//! The frames on a thread's data stack, since 3.11: contiguous in chunks that only the thread itself changes.
//!
//! They are found without following any pointer in a frame. A chunk begins with a frame (the very first one after one unused
//! word), the length of a frame follows from its code object, and the next frame begins where it ends
//! (Python/pystate.c, `_PyThreadState_PushFrame`, `push_chunk`). So a walk through a chunk from its start visits every
//! frame in it. All frames below the innermost are complete: they have called the next one. They hold references to their
//! code objects.
//!
//! The innermost frame is the one that the thread state names. It may be half-built: between two calls of the evaluation
//! loop, stores may happen in any order. So its address is believed only if it lies in a chunk, not beyond the used part, and
//! the frames below end exactly there; its contents are not. If the loop has called a function outside, it is complete too.
//! It need not be the last frame on the data stack: a returning call unlinks its frame first, then releases the code object,
//! and only then lowers the top. So nothing above the innermost frame is read here, and that one only if it is complete.
//!
//! Most frames are those of the thread's previous walk. So where each one's code was kept then is tried first, and what is to be
//! recorded of a frame is read in this pass, in which no read waits for another: only then the chain is followed. Nothing is taken
//! over from the previous walk without a comparison.
//!
//! This describes CPython; an extension could do anything to a data stack. So code that the thread has not met before is
//! probed.
//!
//! (In 3.11 and 3.12 a call of the evaluation loop that has just begun has not yet named its frame, so the innermost one
//! may be an old address. Then no frame is being built: the call's own was built before it began.)

use platform::arch::{load, load_field};
use platform::bounds::Bounds;
use python_layout::{Linkage, OWN, REFERENCE_FLAGS};
use unwind::{Frame, Interpreted};

use super::codes::{Code, Codes, Place};
use super::descriptor::Python;
use crate::memory::{Lasting, Memory};

/// Maximum number of frames per chunk: as many as fit into a usual one.
const FRAMES: usize = 208;
/// Maximum number of chunks searched for a frame.
const CHUNKS: usize = 16;
/// `_PyStackChunk`: `previous`, `size`, `top`, `data`.
pub(super) const SIZE: u16 = 8;
const TOP: u64 = 16;
const DATA: u64 = 24;

/// A frame on the data stack.
#[derive(Clone, Copy)]
struct Entry {
    address: u64,
    /// What is recorded of it, if its code was met before and is still the same; 0 otherwise.
    frame: u64,
    /// The frame that follows in the chain.
    previous: u64,
    /// The byte that identifies its owner.
    owner: u8,
    /// Where its code is kept, or was in an earlier walk: most frames are the same again.
    place: Place,
}

/// Frames that have been read and follow each other in the chain: what is recorded of them, innermost first.
pub(super) struct Chain<'a> {
    entries: &'a [Entry],
    /// The frame that follows.
    pub(super) next: u64,
    ends_itself: bool,
    /// The last frame was the outermost one of its run.
    pub(super) has_ended: bool,
}

impl Chain<'_> {
    /// The number of frames farther out.
    pub(super) fn left(&self) -> usize {
        self.entries.len()
    }
}

impl Iterator for Chain<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        let (entry, outer) = self.entries.split_last()?;
        if entry.address != self.next || entry.frame == 0 || self.has_ended {
            return None;
        }
        (self.entries, self.next) = (outer, entry.previous);
        self.has_ended = self.ends_itself && entry.owner != 0;
        Some(entry.frame)
    }
}

/// The frames of one chunk; all zeros for none.
pub(crate) struct DataStack {
    /// The address of the chunk, and its range.
    chunk: u64,
    range: Bounds,
    /// Lowest address first. What is beyond `count` only guesses.
    entries: [Entry; FRAMES],
    count: usize,
}

impl DataStack {
    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        (self.chunk, self.range, self.count) = (0, Bounds::NONE, 0);
    }

    /// Finds the frames below `innermost`, and that one too if the loop is `settled`, so that it is complete; returns whether it
    /// is.
    ///
    /// # Safety
    /// The thread state must be that of the paused thread, and nobody may free it or its chunks meanwhile.
    pub(super) unsafe fn begin(
        &mut self,
        python: &Python,
        state: u64,
        innermost: u64,
        settled: bool,
        (codes, memory): (&Codes, &mut Memory<'_>),
    ) -> bool {
        let offset = u64::from(python.layout.thread_chunk);
        if offset == 0 {
            return false;
        }
        // SAFETY: two words of the state.
        let (newest, top) = unsafe { (load(state + offset), load(state + offset + 8)) };
        // SAFETY: the chunk that holds the innermost frame is the thread's; others are probed.
        let Some((chunk, range, is_newest)) = (unsafe { newest_with(newest, innermost, memory) }) else {
            return false;
        };
        // SAFETY: the thread's chunk.
        let (used, runs) =
            unsafe { (if is_newest { top } else { used(chunk) }, runs(python, innermost, range)) };
        let is_complete = settled && runs && innermost < used && used <= range.high;
        // SAFETY: all frames below the innermost one are complete.
        innermost <= used
            && unsafe { self.read(python, (chunk, range), (innermost, is_complete), codes, memory) }
            && is_complete
    }

    /// Whether a complete frame begins at `frame`. To be called from inner to outer frames.
    ///
    /// # Safety
    /// The conditions of [`begin`](Self::begin), in the same walk.
    #[inline]
    pub(super) unsafe fn holds(
        &mut self,
        python: &Python,
        frame: u64,
        (codes, memory): (&Codes, &mut Memory<'_>),
    ) -> bool {
        if self.chunk == 0 {
            return false;
        }
        if !self.range.hold(frame) {
            // SAFETY: the conditions of `begin` still hold.
            unsafe { self.enter(python, frame, codes, memory) };
        }
        self.entry(frame).is_some()
    }

    /// Whether a frame lies in the chunk whose frames were read.
    #[inline]
    pub(super) fn may_hold(&self, frame: u64) -> bool {
        self.range.hold(frame)
    }

    /// The frames from `frame` on that are complete and whose code was met before; the chain ends with a frame that has an owner
    /// if it `ends_itself`. To be called from inner to outer frames, of those that it [may hold](Self::may_hold).
    #[inline]
    pub(super) fn chain(&mut self, frame: u64, ends_itself: bool) -> Chain<'_> {
        self.entry(frame);
        let entries = self.entries.get(..self.count).unwrap_or(&[]);
        Chain { entries, next: frame, ends_itself, has_ended: false }
    }

    /// Drops all frames but the outermost `count`.
    pub(super) fn keep(&mut self, count: usize) {
        self.count = self.count.min(count);
    }

    /// The entry of a frame. Drops those that are farther in.
    #[inline]
    fn entry(&mut self, frame: u64) -> Option<Entry> {
        while let Some(last) = self.count.checked_sub(1) {
            let entry = *self.entries.get(last)?;
            if entry.address <= frame {
                return (entry.address == frame).then_some(entry);
            }
            self.count = last;
        }
        None
    }

    /// Continues with the outer chunk that contains this frame, if there is one.
    ///
    /// # Safety
    /// The conditions of `begin`.
    #[cold]
    unsafe fn enter(&mut self, python: &Python, frame: u64, codes: &Codes, memory: &mut Memory<'_>) {
        // SAFETY: the thread's own chunks. All frames in outer chunks are below the innermost, so they are complete.
        unsafe {
            let outer = load(self.chunk);
            if let Some((chunk, range, _)) = find(outer, frame) {
                self.read(python, (chunk, range), (used(chunk), false), codes, memory);
            }
        }
    }

    /// Reads the frames of a chunk up to `end`, where one must end; also the one that begins there, if `with_last`. False, and
    /// no frames at all, if none ends there.
    ///
    /// # Safety
    /// The frames must be complete.
    unsafe fn read(
        &mut self,
        python: &Python,
        (chunk, range): (u64, Bounds),
        (end, with_last): (u64, bool),
        codes: &Codes,
        memory: &mut Memory<'_>,
    ) -> bool {
        (self.chunk, self.range, self.count) = (chunk, range, 0);
        // SAFETY: the thread's chunk.
        let is_first = unsafe { load(chunk) } == 0;
        if end > range.high {
            return false;
        }
        let mut frame = start(chunk, is_first);
        while (frame < end || with_last && frame == end)
            && let Some(entry) = self.entries.get_mut(self.count)
        {
            if frame != end && end - frame < u64::from(python.layout.frame_words) * 8 {
                return self.distrust();
            }
            entry.address = frame;
            self.count += 1;
            // SAFETY: a complete frame has a code object.
            let Some(words) = (unsafe { entry.words(python, codes, memory) }) else {
                return self.distrust();
            };
            if frame == end {
                break;
            }
            frame += u64::from(words) * 8;
        }
        if frame > end {
            return self.distrust();
        }
        // SAFETY: the thread's chunk, while nobody frees it.
        unsafe { memory.keep(Lasting::Chunk, range) };
        true
    }

    fn distrust(&mut self) -> bool {
        self.count = 0;
        false
    }
}

impl Entry {
    /// Reads a complete frame and returns its number of words; `None` if its code is not a code object.
    ///
    /// # Safety
    /// The frame must be complete.
    #[inline]
    unsafe fn words(&mut self, python: &Python, codes: &Codes, memory: &mut Memory<'_>) -> Option<u32> {
        let layout = &python.layout;
        self.frame = 0;
        let frame = self.address;
        // SAFETY: fields of the frame, which lies in the chunk.
        let of_frame = |offset: u16| unsafe { load_field(frame, offset) };
        let code = of_frame(layout.frame_code) & !REFERENCE_FLAGS;
        if codes.at(self.place, code).is_none() {
            let Some(place) = codes.place(code) else {
                let is_code = memory.field(code, layout.object_type)? == python.code_type;
                return Code::frame_words(python, |offset| memory.half(code, offset)).filter(|_| is_code);
            };
            self.place = place;
        }
        memory.saw(code);
        // SAFETY: fields of the frame's code, which the frame keeps alive. The small ones lie in the middle of the object.
        let field = |offset: u16| unsafe { load_field(code, offset) };
        let words = Code::frame_words(python, |offset| Some(field(offset) as u32))?;
        match codes.at(self.place, code) {
            Some((known, function))
                if known.words == words
                    // SAFETY: the code object of a complete frame.
                    && unsafe { known.is_unchanged(python) } =>
            {
                let owner = (of_frame(layout.frame_owner & !7) >> (layout.frame_owner % 8 * 8)) as u8;
                if let Some(offset) = layout.instruction(of_frame(layout.frame_instruction), code)
                    && owner < OWN
                {
                    self.previous = of_frame(layout.frame_previous);
                    self.frame = Frame::interpreted(Interpreted { function: *function, offset }).bits();
                    self.owner = owner;
                }
                Some(words)
            }
            _ => (field(layout.object_type) == python.code_type).then_some(words),
        }
    }
}

/// Whether a frame in a chunk is neither being entered nor being left, in 3.11. True in later versions, where that follows from
/// the settled loop.
///
/// # Safety
/// `chunk` must be the range of a living chunk.
unsafe fn runs(python: &Python, frame: u64, chunk: Bounds) -> bool {
    let stack_top = frame.saturating_add(python.layout.frame_stack_top.into());
    // SAFETY: the field lies in the chunk.
    python.layout.linkage != Linkage::CFrames
        || chunk.hold(stack_top) && unsafe { load(stack_top) } as u32 == u32::MAX
}

/// The same as [`find`], from the newest chunk on. Chunks newer than the one that holds the innermost frame may belong to
/// another thread that runs with the state meanwhile, so they are probed.
///
/// # Safety
/// If `innermost` lies in a chunk, nobody frees that one meanwhile.
unsafe fn newest_with(newest: u64, innermost: u64, memory: &mut Memory<'_>) -> Option<(u64, Bounds, bool)> {
    /// DATA_STACK_CHUNK_SIZE: no chunk is smaller.
    const SMALLEST: u64 = 16 << 10;
    if innermost.wrapping_sub(newest) < SMALLEST {
        // SAFETY: the chunk holds the innermost frame.
        return unsafe { find(newest, innermost) };
    }
    let mut chunk = newest;
    for number in 0..CHUNKS {
        let range = Bounds { low: chunk, high: chunk.saturating_add(memory.field(chunk, SIZE)?) };
        if range.hold(innermost) {
            return Some((chunk, range, number == 0));
        }
        chunk = memory.word(chunk)?;
    }
    None
}

/// The chunk that contains `address`, searched from `chunk` outwards; its range, and whether it is `chunk` itself.
///
/// # Safety
/// They must be the thread's chunks, which nobody frees meanwhile.
unsafe fn find(mut chunk: u64, address: u64) -> Option<(u64, Bounds, bool)> {
    for number in 0..CHUNKS {
        if chunk == 0 {
            break;
        }
        // SAFETY: the caller passes a live chunk, whose header has these words.
        let (previous, size) = unsafe { (load(chunk), load_field(chunk, SIZE)) };
        let range = Bounds { low: chunk, high: chunk.saturating_add(size) };
        if range.hold(address) {
            return Some((chunk, range, number == 0));
        }
        chunk = previous;
    }
    None
}

/// Where the frames of a chunk begin. The first chunk begins with a word that is not used.
#[inline]
pub(super) fn start(chunk: u64, is_first: bool) -> u64 {
    chunk + DATA + if is_first { 8 } else { 0 }
}

/// The end of what is used of a chunk that is not the newest.
///
/// # Safety
/// It is the thread's.
unsafe fn used(chunk: u64) -> u64 {
    // SAFETY: the caller's promise.
    chunk + DATA + unsafe { load(chunk + TOP) } * 8
}
