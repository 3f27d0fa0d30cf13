//! The frames of one thread state, innermost first, in runs: a run is what one call of the evaluation loop evaluates.

use platform::arch::load_field;
use platform::bounds::Bounds;
use python_layout::{Layout, Linkage, OWN, REFERENCE_FLAGS, instruction_index};
use unwind::{Frame, Interpreted};

use super::certain::Trust;
use super::data_stack::Chain;
use super::descriptor::Python;
use super::thread::{Calls, Thread};
use super::unreadable::Unreadable;
use super::walker::Walker;
use crate::gap::Gap;

/// Maximum number of frames read of one thread state.
const FRAMES: usize = 8192;

/// Whether a C frame is the outermost one, which is part of the thread state and belongs to no call. (Its `previous` is
/// undefined in 3.10.)
pub(super) fn is_in(state: u64, c_frame: u64) -> bool {
    /// Upper bound of the size of a thread state in any version.
    const BYTES: u64 = 1024;
    c_frame.wrapping_sub(state) < BYTES
}

/// The index of a frame object's current instruction, out of the word that holds it.
#[inline]
fn object_instruction(layout: &Layout, word: u64) -> Option<u32> {
    let last = word >> (layout.frame_instruction % 8 * 8);
    // In 3.9 it is an offset.
    instruction_index(i64::from(last as i32) >> u32::from(layout.linkage == Linkage::Objects))
}

/// Frames that were added.
struct Pushed {
    /// The frame that follows; the first one if none was added.
    next: u64,
    /// They are the last ones of their run.
    has_ended: bool,
    /// There was no room for all of them.
    is_full: bool,
}

impl Walker<'_, '_> {
    /// Finds all runs of a state, or notes that some are missing; returns whether it found all. Not inlined into the loop over
    /// states, whose invariants would be computed and spilled first: nearly all threads have one state.
    #[inline(never)]
    pub(super) fn find(&mut self, state: u64) -> bool {
        self.begin(state);
        let walked = self.walk(state);
        if let Err(gap) = walked {
            let inside = self.found.last().unwrap_or(self.thread.innermost);
            self.found.push_gap(gap);
            self.found.close(inside);
        }
        walked.is_ok()
    }

    /// Finds all runs. The error says why further ones are missing.
    fn walk(&mut self, state: u64) -> Result<(), Gap> {
        match self.thread.python.layout.linkage {
            Linkage::Objects | Linkage::ObjectsAndCFrames => {
                let walked = self.frame_objects(state);
                if walked.is_err() && self.is_run_elsewhere() {
                    self.found.forget_open();
                }
                walked
            }
            Linkage::CFrames | Linkage::CFramesAndEntries => self.c_frames(state),
            Linkage::Entries => self.entries(state),
        }
    }

    /// 3.13 and later: one chain of all frames, in which those of the calls themselves end the runs.
    fn entries(&mut self, state: u64) -> Result<(), Gap> {
        let layout = &self.thread().python.layout;
        let mut frame = self.field(state, layout.thread_frame)?;
        let mut full = false;
        for _ in 0..FRAMES {
            if frame == 0 {
                return if full { Err(Gap::TooDeep) } else { Ok(()) };
            }
            let chain = self.push_read(frame, false);
            full |= chain.is_full;
            if chain.next != frame {
                frame = chain.next;
                continue;
            }
            let is_complete = self.is_complete(frame);
            if self.is_own(frame, is_complete)? {
                self.found.close(frame);
                if full {
                    return Err(Gap::TooDeep);
                }
                self.trust = self.certain.trust;
            } else if !full {
                full = self.push_or_full(frame, is_complete)?;
            }
            frame = self.of_frame(frame, layout.frame_previous, is_complete)?;
        }
        Err(Gap::TooDeep)
    }

    /// 3.11 and 3.12: a `_PyCFrame` for each call, in a chain of their own that points to the runs. An unreadable run does not
    /// affect the outer ones. The innermost call may have just begun: until its first frame is linked, its `_PyCFrame` holds
    /// whatever an earlier call left there on the stack.
    fn c_frames(&mut self, state: u64) -> Result<(), Gap> {
        let layout = &self.thread().python.layout;
        let first = self.field(state, layout.thread_frame)?;
        // A thread that starts another one owns the new state in 3.11, until that has been initialised.
        if first == 0 {
            return Ok(());
        }
        let mut c_frame = self.behind_beginning(state, first, layout.c_frame_previous)?;
        let skipped = usize::from(c_frame != first);
        let mut innermost = self.stack_field(c_frame, layout.c_frame_current)?;
        for number in skipped..FRAMES {
            if is_in(state, c_frame) {
                return Ok(());
            }
            let outer = self.stack_field(c_frame, layout.c_frame_previous)?;
            let behind = self.stack_field(outer, layout.c_frame_current)?;
            self.trust = self.certain.trust;
            match self.run(innermost, behind) {
                Ok(()) => {}
                Err(Gap::Unreadable) => {
                    self.found.forget_open();
                    if number > 0 {
                        self.found.push_gap(Gap::Unreadable);
                    }
                }
                Err(gap) => {
                    self.found.close(c_frame);
                    return Err(gap);
                }
            }
            self.found.close(c_frame);
            (c_frame, innermost) = (outer, behind);
        }
        Err(Gap::TooDeep)
    }

    /// Reads the frames from `frame` to the last one of the run, which is followed by `behind`.
    fn run(&mut self, mut frame: u64, behind: u64) -> Result<(), Gap> {
        let layout = &self.thread().python.layout;
        let ends_itself = layout.linkage == Linkage::CFrames;
        let mut full = false;
        // A call that has just begun may have no frame yet.
        if frame == behind {
            return Ok(());
        }
        for _ in 0..FRAMES {
            let chain = self.push_read(frame, ends_itself);
            full |= chain.is_full;
            let is_last = if chain.next != frame {
                frame = chain.next;
                chain.has_ended
            } else {
                let is_complete = self.is_complete(frame);
                let is_own = !ends_itself && self.is_own(frame, is_complete)?;
                if !is_own && !full {
                    full = self.push_or_full(frame, is_complete)?;
                }
                let is_entry = ends_itself && self.owner(frame, is_complete)? != 0;
                frame = self.of_frame(frame, layout.frame_previous, is_complete)?;
                is_own || is_entry
            };
            if is_last {
                return match (frame == behind, full) {
                    (true, false) => Ok(()),
                    (true, true) => Err(Gap::TooDeep),
                    (false, _) => Err(Gap::Unreadable),
                };
            }
        }
        Err(Gap::TooDeep)
    }

    /// 3.9 and 3.10: a frame object for each call. Frames and calls are matched from the root, where both are complete; a call
    /// that begins or ends may have one without the other.
    fn frame_objects(&mut self, state: u64) -> Result<(), Gap> {
        let layout = &self.thread().python.layout;
        let mut frame = match self.trust {
            Trust::All => self.certain.innermost,
            _ => self.field(state, layout.thread_frame)?,
        };
        let (innermost, before) = (frame, self.found.depth());
        let mut frames = 0;
        while frame != 0 {
            if frames == FRAMES {
                return Err(Gap::TooDeep);
            }
            if self.trust == Trust::All && self.found.depth() == before + frames {
                // SAFETY: all frames from here on are complete.
                frame = unsafe { self.push_known(frame) };
                frames = self.found.depth() - before;
                if frame == 0 {
                    break;
                }
            }
            let is_complete = self.is_complete(frame);
            if self.found.depth() == before + frames && self.push_or_full(frame, is_complete)? {
                return Err(Gap::TooDeep);
            }
            frames += 1;
            frame = self.of_frame(frame, layout.frame_previous, is_complete)?;
        }
        let count = match layout.linkage {
            _ if frames == 0 => return Ok(()),
            Linkage::Objects => self.noted_by_code(frames)?,
            _ => self.note_c_frames(state)?,
        };
        // A call that begins or ends may have no frame, or a frame no call. If the innermost frame is another one by now,
        // another thread runs with the state.
        let stands = self.field(state, layout.thread_frame)? == innermost;
        // A frame without a call is that of a call that ends, which is on the native stack, or another thread's.
        let is_of_other =
            layout.linkage == Linkage::ObjectsAndCFrames && frames > count && self.calls.evaluations < frames;
        let most = usize::from(!self.is_run_elsewhere());
        if frames.abs_diff(count) > most || is_of_other || !stands {
            self.found.forget_open();
            return Err(Gap::Unreadable);
        }
        self.found.close_noted(count, self.found.depth());
        Ok(())
    }

    /// Whether another thread may run with the state: in 3.10 the innermost call is then not on this thread's stack.
    fn is_run_elsewhere(&self) -> bool {
        let has_calls = self.thread.python.layout.linkage == Linkage::ObjectsAndCFrames;
        has_calls && self.certain.trust != Trust::All && self.thread.stack != Bounds::NONE
    }

    /// The number of calls of the evaluation loop, which are noted. In 3.9 they are recognised by their code.
    fn noted_by_code(&mut self, frames: usize) -> Result<usize, Gap> {
        let Calls { evaluations, are_noted, .. } = self.calls;
        // If there are fewer calls than frames, some are in unknown code. The calls of another state have been used up.
        if evaluations < frames || !self.found.runs().is_empty() {
            self.found.forget_open();
            return Err(Gap::Unreadable);
        }
        if are_noted { Ok(evaluations) } else { Err(Gap::TooDeep) }
    }

    /// Notes the calls of the evaluation loop and returns their number, in 3.10, where each call has a `CFrame`.
    fn note_c_frames(&mut self, state: u64) -> Result<usize, Gap> {
        let layout = &self.thread().python.layout;
        let first = self.field(state, layout.thread_c_frame)?;
        let mut c_frame = self.behind_beginning(state, first, layout.c_frame_previous)?;
        let mut count = 0;
        while !is_in(state, c_frame) {
            self.found.note(count, c_frame).ok_or(Gap::TooDeep)?;
            count += 1;
            c_frame = self.stack_field(c_frame, layout.c_frame_previous)?;
        }
        Ok(count)
    }

    /// The innermost C frame that is filled in: `first`, or the next one if the call of `first` has just begun.
    ///
    /// Compilers may name a C frame in the thread state before they store what is in it. All calls keep theirs at the same
    /// distance from their stack pointer, so that of the next call is known without following the chain.
    #[inline]
    fn behind_beginning(&mut self, state: u64, first: u64, previous: u16) -> Result<u64, Unreadable> {
        /// The bytes of code in which a call begins.
        const BEGINNING: u64 = 256;
        let Thread { python, native, .. } = self.thread();
        let leaf = native.and_then(|native| native.frames().first()).map_or(0, |leaf| leaf.address());
        match leaf.wrapping_sub(python.evaluation.start) < BEGINNING {
            true => self.behind_unfilled(state, first, previous),
            false => Ok(first),
        }
    }

    #[cold]
    fn behind_unfilled(&mut self, state: u64, first: u64, previous: u16) -> Result<u64, Unreadable> {
        let Thread { python: Python { evaluation, .. }, native, is_walked, .. } = self.thread();
        let Some(native) = native else { return Ok(first) };
        let mut pointers = native.stack_pointers();
        let (Some(own), Some(end)) = (pointers.next(), pointers.next()) else { return Ok(first) };
        if !is_walked || !self.is_alone || own == 0 || !(own..end).contains(&first) {
            return Ok(first);
        }
        let calls = native.frames().iter().zip(native.stack_pointers()).skip(1);
        let mut others = calls.filter(|(frame, _)| evaluation.holds(frame.address()));
        let next = others.next().map_or(state, |(_, pointer)| pointer.wrapping_add(first - own));
        let named = self.field(first, previous)?;
        let is_same = named == next || is_in(state, named) && is_in(state, next);
        Ok(if is_same { first } else { next })
    }

    /// Whether a frame is the interpreter's own, which belongs to a call. On the native stack there are no others.
    #[inline]
    fn is_own(&mut self, frame: u64, is_complete: bool) -> Result<bool, Unreadable> {
        let is_own = self.owner(frame, is_complete)? >= OWN;
        match is_own || !self.thread.whole_stack.hold(frame) {
            true => Ok(is_own),
            false => Err(Unreadable),
        }
    }

    /// The byte that identifies the owner of a frame.
    #[inline]
    fn owner(&mut self, frame: u64, is_complete: bool) -> Result<u8, Unreadable> {
        let offset = self.thread.python.layout.frame_owner;
        let word = self.of_frame(frame, offset & !7, is_complete)?;
        Ok((word >> (offset % 8 * 8)) as u8)
    }

    /// Adds the frames of the data stack that follow from `frame` on, as far as they have been read. They are complete, and so are
    /// all outer ones.
    #[inline]
    fn push_read(&mut self, frame: u64, ends_itself: bool) -> Pushed {
        if !self.data_stack.may_hold(frame) {
            return Pushed { next: frame, has_ended: false, is_full: false };
        }
        let mut chain = self.data_stack.chain(frame, ends_itself);
        let is_full = !self.found.extend(&mut chain);
        if chain.next != frame {
            self.trust = Trust::All;
        }
        let Chain { next, has_ended, .. } = chain;
        let left = chain.left();
        self.data_stack.keep(left);
        Pushed { next, has_ended, is_full }
    }

    /// Adds the frame objects that follow from `frame` on, as far as there is room and their code was met before. Returns the next.
    ///
    /// # Safety
    /// They must be complete.
    #[inline]
    unsafe fn push_known(&mut self, mut frame: u64) -> u64 {
        let (python, codes) = (self.thread().python, &*self.codes);
        let layout = &python.layout;
        let known = core::iter::from_fn(|| {
            // SAFETY: a field of a complete frame.
            let of_frame = |offset| unsafe { load_field(frame, offset) };
            if frame == 0 {
                return None;
            }
            let code = of_frame(layout.frame_code);
            let (known, function) = codes.at(codes.place(code)?, code)?;
            // SAFETY: the code object of a complete frame, whose thread is paused.
            if !unsafe { known.is_unchanged(python) } {
                return None;
            }
            let offset = object_instruction(layout, of_frame(layout.frame_instruction & !7))?;
            frame = of_frame(layout.frame_previous);
            Some(Frame::interpreted(Interpreted { function: *function, offset }).bits())
        });
        let room = self.found.room();
        self.found.extend(known.take(room));
        frame
    }

    /// Adds a frame. True if there is no room.
    #[inline]
    fn push_or_full(&mut self, frame: u64, is_complete: bool) -> Result<bool, Gap> {
        let layout = &self.thread().python.layout;
        let code = self.of_frame(frame, layout.frame_code, is_complete)? & !REFERENCE_FLAGS;
        let Some(number) = self.function(code, is_complete)? else { return Ok(false) };
        let offset = self.instruction(frame, code, is_complete)?;
        let (function, offset) = match number {
            Ok(function) => (function, offset),
            Err(gap) => (Interpreted::NOTHING, gap as u32),
        };
        Ok(self.found.push(Interpreted { function, offset }).is_none())
    }

    /// The index of a frame's current instruction in units of two bytes; that of the first one if it has not begun.
    #[inline]
    fn instruction(&mut self, frame: u64, code: u64, is_complete: bool) -> Result<u32, Unreadable> {
        let layout = &self.thread().python.layout;
        let offset = layout.frame_instruction;
        match layout.linkage {
            Linkage::Objects | Linkage::ObjectsAndCFrames => {
                object_instruction(layout, self.of_frame(frame, offset & !7, is_complete)?)
            }
            _ => layout.instruction(self.of_frame(frame, offset, is_complete)?, code),
        }
        .ok_or(Unreadable)
    }
}
