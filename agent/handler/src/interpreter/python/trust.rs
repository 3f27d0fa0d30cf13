//! What of a thread state's frames may be read without asking: what cannot be freed before the thread goes on.
//!
//! The thread is paused where it was interrupted or has called us. It is the only one that links, unlinks and frees its
//! frames. A complete frame holds a reference to its code object, and that one to its name; and what it was called by is
//! complete, too, and waits for it. So all of these are mapped, whatever other threads free: where one frame is certainly
//! complete, so is the rest of the chain. This is not so
//! - while the interpreter ends, which frees states and names that are in use (`_PyRuntimeState._finalizing`): this is asked
//!   anew for each walk (a thread that loses the processor between the question and its reads, for as long as the interpreter
//!   takes from there to its last steps, could be late; so could it between asking for a page and reading it);
//! - for a thread state that another thread runs, as sub-interpreters before 3.13 may: one that the thread runs has its
//!   `_PyCFrame` on the thread's stack (3.10 to 3.12); elsewhere it must be the only one that the thread has;
//! - for a frame that is being linked, cleared or unlinked. Before 3.11 frames are objects, linked after they are complete,
//!   and unlinked before they are given up by the call that holds a reference to them: all are complete. In later versions
//!   the evaluation loop links frames itself, and a compiler may order its stores as it likes; so the innermost frame says
//!   nothing, not even what called it, and another one must be found on the thread's data stack first (`data_stack`);
//! - for a code object that is being freed, as 3.11 does with the code of a frame that is still linked, and callbacks of weak
//!   references may run Python code meanwhile. It has no references any more.
//!
//! Code that the thread has not met before is asked for all the same, and so is its name: so what is read without asking has
//! been there before.
//!
//! The evaluation loop is settled where it has called a function outside of the interpreter: what that may look at has been
//! stored by then. There the innermost frame is like any other; but in 3.11 it may be one whose code has been freed, unless
//! it still runs (`stacktop` is -1).

use super::certain::{Certain, Trust};
use super::layout::Linkage;
use super::unreadable::Unreadable;
use super::walker::Walker;
use crate::arch::load;

impl Walker<'_, '_> {
    /// Finds out what may be read of this state, which is the thread's; `alone` if it has no other.
    pub(super) fn begin(&mut self, state: u64, alone: bool) {
        self.certain = self.certain_of(state, alone).unwrap_or(Certain::NOTHING);
        self.trust = self.certain.trust;
    }

    fn certain_of(&mut self, state: u64, alone: bool) -> Option<Certain> {
        let thread = self.thread;
        let layout = &thread.python.layout;
        if self.memory.field(thread.python.runtime, layout.finalizing)? != 0 {
            return None;
        }
        let frame = self.memory.field(state, layout.thread_frame)?;
        let innermost = match layout.linkage {
            Linkage::Objects | Linkage::Entries => alone.then_some(frame)?,
            Linkage::ObjectsAndCFrames => {
                let c_frame = self.memory.field(state, layout.thread_c_frame)?;
                thread.stack.hold(c_frame).then_some(frame)?
            }
            Linkage::CFrames | Linkage::CFramesAndEntries => {
                let c_frame = thread.stack.hold(frame).then_some(frame)?;
                self.memory.field(c_frame, layout.c_frame_current)?
            }
        };
        match layout.linkage {
            Linkage::Objects | Linkage::ObjectsAndCFrames => {
                return Some(Certain { trust: Trust::All, doubtful: 0 });
            }
            _ if layout.thread_chunk == 0 => return None,
            _ => {}
        }
        // Both words that the data stack wants.
        self.memory.field(state, layout.thread_chunk)?;
        self.memory.field(state, layout.thread_chunk + 8)?;
        let settled = thread.is_settled();
        // SAFETY: the thread's own state, by its list and by what was just asked; the interpreter does not end.
        unsafe {
            let reading = (&*self.codes, &mut *self.memory);
            self.data_stack.begin(thread.python, state, innermost, settled, reading);
        }
        let is_doubtful = !settled || layout.linkage == Linkage::CFrames && !self.runs(innermost);
        Some(Certain { trust: Trust::DataStack, doubtful: if is_doubtful { innermost } else { 0 } })
    }

    /// Whether a frame is neither called nor left.
    fn runs(&mut self, frame: u64) -> bool {
        let place = self.thread.python.layout.frame_stack_top;
        self.data_stack.is_in_chunk(frame) && self.memory.half(frame, place) == Some(u32::MAX)
    }

    /// True if the frame is complete, and cannot be freed before the thread goes on. Frames are asked about in their order.
    #[inline]
    pub(super) fn is_complete(&mut self, frame: u64) -> bool {
        match self.trust {
            Trust::Nothing => false,
            Trust::All => true,
            Trust::DataStack => self.is_on_data_stack(frame),
        }
    }

    #[inline(never)]
    fn is_on_data_stack(&mut self, frame: u64) -> bool {
        let python = self.thread.python;
        // SAFETY: as of `begin`, in the same walk.
        let holds = frame != self.certain.doubtful
            && unsafe { self.data_stack.holds(python, frame, (&*self.codes, &mut *self.memory)) };
        if holds {
            self.trust = Trust::All;
        }
        holds
    }

    /// The word at `offset` of a frame of which [`is_complete`](Self::is_complete) was said.
    #[inline]
    pub(super) fn of_frame(&mut self, frame: u64, offset: u16, is_complete: bool) -> Result<u64, Unreadable> {
        match is_complete {
            // SAFETY: it is alive.
            true => Ok(unsafe { load(frame.wrapping_add(offset.into())) }),
            false => self.field(frame, offset),
        }
    }
}
