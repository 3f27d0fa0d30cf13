//! CPython 3.9 to 3.14: the frames of the interrupted thread, without the GIL and without a call into the interpreter.
//!
//! A thread's own frames do not change while its handler runs, whether it holds the GIL or not. Only the innermost frame,
//! and lists that other threads change, may be half-built. So everything reached through them is checked: a code object
//! must have the type `code`, a thread state must belong to the thread and be in its interpreter's list. A run of frames
//! ends with a mark where a check fails. Memory that cannot be freed meanwhile is read without a probe (`trust`).
//!
//! If the evaluation loop keeps something on the native stack (a `_PyCFrame`, or the frame that ends a run), its address
//! identifies the native frame. In 3.9 it keeps nothing there, and its calls are recognised by their code.

mod certain;
mod code;
mod codes;
mod data_stack;
mod descriptor;
mod frames;
mod string;
mod thread;
mod thread_state;
mod trust;
mod unreadable;
mod walker;

use crate::interpreter::found::Found;
use crate::interpreter::gap::Gap;
use crate::interpreter::memory::Memory;
use certain::{Certain, Trust};
use codes::Codes;
use data_stack::DataStack;
use thread::Calls;
use thread_state::Cached;
use walker::{Text, Walker};

pub use descriptor::{Code, Python, ThreadLocals};
pub use python_layout::Layout;
use python_layout::Linkage;
pub(crate) use thread::Thread;

/// The memory that a thread needs for reading Python frames. All zeros when empty.
pub(crate) struct Work {
    cached: Cached,
    /// What the marked native frames tell.
    calls: Calls,
    /// The calls that were noted among the frames found are still there.
    are_noted: bool,
    codes: Codes,
    data_stack: DataStack,
    text: Text,
}

impl Work {
    /// Forgets what belonged to another thread.
    pub(crate) fn reset(&mut self) {
        self.cached = Cached::default();
        self.are_noted = false;
    }
}

/// Finds the thread's frames. Reads nothing unless the thread runs code of the interpreter.
pub(super) fn find(thread: &Thread<'_>, memory: &mut Memory<'_>, found: &mut Found, work: &mut Work) {
    let Work { cached, calls, are_noted, codes, data_stack, text } = work;
    let python = thread.python;
    if !thread.native.is_marked() || python.layout.linkage == Linkage::Objects && !*are_noted {
        *calls = thread.calls(found);
    }
    let calls = *calls;
    *are_noted = false;
    if !calls.any {
        return;
    }
    let states = cached.states(python, thread.pointer, memory);
    let innermost = thread.native.stack_pointers().next().unwrap_or(0);
    let is_alone = states.iter().filter(|state| **state != 0).count() == 1;
    let mut to_sort = !is_alone;
    codes.begin(thread.recording.region.nonce());
    let mut complete = true;
    for state in states.into_iter().filter(|state| *state != 0) {
        let (certain, trust) = (Certain::NOTHING, Trust::Nothing);
        let mut walker =
            Walker { thread, calls, memory, found, text, codes, data_stack, certain, trust, is_alone };
        walker.begin(state);
        if let Err(gap) = walker.walk(state) {
            complete = false;
            let inside = found.last().unwrap_or(innermost);
            found.push_gap(gap);
            found.close(inside);
        }
    }
    // A call that begins or ends may have no frame. If more lack one, a chain was broken by a frame being linked.
    if complete && calls.evaluations > found.runs().len() + 1 {
        found.push_gap(Gap::Unreadable);
        found.close(innermost);
        to_sort = true;
    }
    if to_sort {
        found.sort();
    } else {
        *are_noted = complete && found.runs().len() == calls.evaluations;
    }
}
