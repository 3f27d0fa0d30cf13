//! Which frames of a thread state may be read without a probe: those that cannot be freed before the thread continues.
//!
//! The thread is paused where it was interrupted or has called the agent. Only this thread links, unlinks and frees its
//! frames. A complete frame holds a reference to its code object, and the code object to its name. The caller of a
//! complete frame is complete too and waits for it. So all of these stay mapped whatever other threads free, and once one
//! frame is known to be complete, so is the rest of the chain. The exceptions:
//!
//! - **A finalizing interpreter** frees states and names that are in use (`_PyRuntimeState._finalizing`). This is checked
//!   anew for each walk. (A thread that is preempted between the check and its reads for as long as the interpreter needs
//!   to reach its last steps could be late; the same holds between any probe and its read.)
//! - **A thread state that another thread runs**, as sub-interpreters before 3.13 and the C API before 3.12 permit, while
//!   this thread is outside of the interpreter. If this thread was the last to enter the evaluation loop with a state, its
//!   `_PyCFrame` is on this thread's stack (3.10 to 3.12). In 3.10 the innermost frame is named beside it, so that is read
//!   before and after. Chunks of the data stack that are newer than the innermost frame's are probed (`data_stack`). In 3.9
//!   nothing tells: it must be the thread's only state, and the thread the only one of the process. Since 3.13 the thread-local
//!   variable that holds the current state (`_Py_tss_tstate`) must hold this one: the thread then has the GIL. It is in no
//!   symbol table, so it is looked for among the few thread-local variables of the interpreter's object. Or no thread is
//!   attached with the state: whoever attaches later only adds frames.
//! - **A frame that is being linked, cleared or unlinked.** Before 3.11 frames are objects. They are initialised by a
//!   function that returns them, and the evaluation loop, which is entered through a function pointer, links them in the
//!   thread state: a compiler cannot move the stores of the one past the call of the other, because it does not know what
//!   the called function reads. The loop unlinks a frame before its caller gives up its reference, by a function call again
//!   or a store that the caller's decrement depends on. So all are complete in 3.9 and 3.10. (Within a thread a processor
//!   shows a signal handler all stores in program order.) Since 3.11 the loop links frames itself, and the compiler may
//!   order its stores freely. So nothing that the innermost frame contains is trusted, not even its caller; another frame
//!   must be found on the thread's data stack first (`data_stack`).
//! - **What lies on the native stack**: `_PyCFrame` and, since 3.12, the frames that end runs. greenlet copies parts of the stack
//!   away and back, so they may be anything. They are read like all of the stack, and the frame that they name must again
//!   be found on the data stack. greenlet changes the thread state after the stack: the data stack is that of the
//!   greenlet which is left, and alive. It also takes the frames that end runs out of the chain of a greenlet that is
//!   left: a chain may end anywhere.
//! - **A code object that is being freed**, as 3.11 does while its frame is still linked, and while callbacks of weak
//!   references run Python code. Its reference count is 0.
//!
//! Code that the thread has not met before is probed all the same, and so is its name: whatever is read without a probe has
//! been there before.
//!
//! The evaluation loop is *settled* while it calls a function outside of the interpreter: everything that this function
//! might look at has been stored by then. The innermost frame is then like any other. But in 3.11 its code may have been
//! freed already, unless the frame still runs (`stacktop` is -1).

use platform::arch::load_field;
use platform::bounds::Bounds;
use python_layout::Linkage;

use super::certain::{Certain, Trust};
use super::unreadable::Unreadable;
use super::walker::Walker;

impl Walker<'_, '_> {
    /// Determines what may be read of this state, which is the thread's.
    pub(super) fn begin(&mut self, state: u64) {
        self.data_stack.clear();
        self.certain = self.certain_of(state).unwrap_or(Certain::NOTHING);
        self.trust = self.certain.trust;
    }

    fn certain_of(&mut self, state: u64) -> Option<Certain> {
        let thread = self.thread;
        let layout = &thread.python.layout;
        if thread.python.is_finalizing() {
            return None;
        }
        let frame = self.memory.field(state, layout.thread_frame)?;
        let innermost = match layout.linkage {
            Linkage::Objects => (self.is_alone && thread.is_only).then_some(frame)?,
            Linkage::Entries if layout.thread_chunk == 0 || thread.stack == Bounds::NONE => return None,
            Linkage::Entries => {
                (self.is_current(state) || self.is_detached(state, frame)?).then_some(frame)?
            }
            Linkage::ObjectsAndCFrames => {
                let c_frame = self.memory.field(state, layout.thread_c_frame)?;
                let is_same = self.memory.field(state, layout.thread_frame)? == frame;
                (is_same && thread.stack.hold(c_frame)).then_some(frame)?
            }
            Linkage::CFrames | Linkage::CFramesAndEntries => {
                let c_frame = thread.stack.hold(frame).then_some(frame)?;
                self.memory.field(c_frame, layout.c_frame_current)?
            }
        };
        match layout.linkage {
            Linkage::Objects | Linkage::ObjectsAndCFrames => {
                return Some(Certain { trust: Trust::All, doubtful: 0, innermost });
            }
            _ if layout.thread_chunk == 0 => return None,
            _ => {}
        }
        // Probe both words that `DataStack::begin` reads.
        self.memory.field(state, layout.thread_chunk)?;
        self.memory.field(state, layout.thread_chunk + 8)?;
        let settled = self.calls.is_settled;
        // SAFETY: the state is the thread's own, by the list of states and the checks above; the interpreter is not finalizing.
        let is_complete = unsafe {
            let reading = (&*self.codes, &mut *self.memory);
            self.data_stack.begin(thread.python, state, innermost, settled, reading)
        };
        Some(Certain {
            trust: Trust::DataStack,
            doubtful: if is_complete { 0 } else { innermost },
            innermost: 0,
        })
    }

    /// Whether the thread is attached to the interpreter with this state: it holds the GIL, and nobody else can use the state.
    fn is_current(&self, state: u64) -> bool {
        self.thread.python.is_attached(self.thread.pointer, state)
    }

    /// Whether no thread is attached with this state, and `innermost` is its innermost frame. Then that and the outer ones wait for
    /// this thread, even if another one attaches from now on.
    fn is_detached(&mut self, state: u64, innermost: u64) -> Option<bool> {
        /// `_status.active`.
        const ACTIVE: u32 = 1 << 4;
        let layout = &self.thread.python.layout;
        let is_active = self.memory.half(state, layout.thread_status)? & ACTIVE != 0;
        Some(!is_active && self.memory.field(state, layout.thread_frame)? == innermost)
    }

    /// True if the frame is complete and cannot be freed before the thread continues. To be called in the order of the chain.
    #[inline]
    pub(super) fn is_complete(&mut self, frame: u64) -> bool {
        match self.trust {
            Trust::Nothing => false,
            Trust::All => frame != 0 && !self.thread.whole_stack.hold(frame),
            Trust::DataStack => self.is_on_data_stack(frame),
        }
    }

    #[inline(never)]
    fn is_on_data_stack(&mut self, frame: u64) -> bool {
        let python = self.thread.python;
        // SAFETY: the conditions of `begin` hold until the end of the walk.
        let holds = frame != self.certain.doubtful
            && unsafe { self.data_stack.holds(python, frame, (&*self.codes, &mut *self.memory)) };
        if holds {
            self.trust = Trust::All;
        }
        holds
    }

    /// The word at `offset` of a frame, without a probe if [`is_complete`](Self::is_complete) returned true for it.
    #[inline]
    pub(super) fn of_frame(&mut self, frame: u64, offset: u16, is_complete: bool) -> Result<u64, Unreadable> {
        match is_complete {
            // SAFETY: a complete frame is alive.
            true => Ok(unsafe { load_field(frame, offset) }),
            false => self.stack_field(frame, offset),
        }
    }
}
