//! CPython 3.9 to 3.14: the frames of the interrupted thread, without the GIL and without a call into the interpreter.
//!
//! A thread's own frames do not change while its handler runs, whether it holds the GIL or not. What may be half-built is
//! the newest frame, and lists that other threads change: what they lead to is read with a check, a code object must be of
//! the type `code`, a thread state must be the thread's and in its interpreter's list. What is not certain ends its run with
//! a mark. What cannot be freed meanwhile is read without a system call (`trust`).
//!
//! Where the evaluation loop keeps something on its own stack (a `_PyCFrame`, or the frame that ends a run), its address
//! tells the native frame; 3.9 keeps nothing there, and its loops are known by their code.

mod certain;
mod code;
mod codes;
mod data_stack;
mod descriptor;
mod frames;
mod layout;
mod thread;
mod thread_state;
mod trust;
mod unreadable;
mod walker;

use unwind::Frame;

use crate::interpreter::found::Found;
use crate::interpreter::gap::Gap;
use crate::interpreter::memory::Memory;
use certain::{Certain, Trust};
use codes::Codes;
use data_stack::DataStack;
use thread_state::Cached;
use walker::{Text, Walker};

pub use descriptor::{Code, Python};
pub use layout::Layout;
pub(crate) use thread::Thread;

/// What a thread needs for this part of its walks. Zeros are an empty one.
pub(crate) struct Work {
    cached: Cached,
    codes: Codes,
    data_stack: DataStack,
    text: Text,
}

impl Work {
    /// Forgets what was another thread's.
    pub(crate) fn reset(&mut self) {
        self.cached = Cached::default();
    }
}

/// Finds the thread's frames. Nothing is looked at unless the thread runs code of the interpreter.
pub(super) fn find(thread: &Thread<'_>, memory: &mut Memory<'_>, found: &mut Found, work: &mut Work) {
    let Work { cached, codes, data_stack, text } = work;
    let python = thread.python;
    if !thread.native.frames().iter().any(|frame| python.text.holds(frame.address())) {
        return;
    }
    let states = cached.states(python, thread.pointer, memory);
    let innermost = thread.native.stack_pointers().next().unwrap_or(0);
    let alone = states.iter().filter(|state| **state != 0).count() == 1;
    let mut to_sort = !alone;
    codes.begin(thread.recording.region.nonce());
    let mut complete = true;
    for state in states.into_iter().filter(|state| *state != 0) {
        let (certain, trust) = (Certain::NOTHING, Trust::Nothing);
        let mut walker = Walker { thread, memory, found, text, codes, data_stack, certain, trust };
        walker.begin(state, alone);
        if let Err(gap) = walker.walk(state) {
            complete = false;
            let inside = found.last().unwrap_or(innermost);
            found.push_gap(gap);
            found.close(inside);
        }
    }
    // A call that begins or ends may have no frame. If there are more, a chain was broken where one was being linked.
    let is_call = |frame: &&Frame| python.evaluation.holds(frame.address());
    let calls = thread.native.frames().iter().filter(is_call).count();
    if complete && calls > found.runs().len() + 1 {
        found.push_gap(Gap::Unreadable);
        found.close(innermost);
        to_sort = true;
    }
    if to_sort {
        found.sort();
    }
}
