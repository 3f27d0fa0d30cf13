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
mod known_walks;
mod string;
mod thread;
mod thread_state;
mod trust;
mod unreadable;
mod walker;

use crate::found::Found;
use crate::gap::Gap;
use crate::memory::Memory;
use certain::{Certain, Trust};
use codes::Codes;
use data_stack::DataStack;
use thread_state::Cached;
use walker::{Text, Walker};

pub use descriptor::{Code, Python, ThreadLocals};
pub use known_walks::KnownWalks;
pub use python_layout::Layout;
use python_layout::Linkage;
pub use thread::Calls;
pub(crate) use thread::Thread;

/// The memory that a thread needs for reading Python frames. All zeros when empty.
pub(crate) struct Work {
    cached: Cached,
    /// What the marked native frames tell.
    calls: Calls,
    /// They have told it since this was forgotten.
    have_told: bool,
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

    /// What the native frames of the last walk have told, if there was one since the last call of
    /// [`forget_calls`](Self::forget_calls).
    pub(super) fn calls(&self) -> Option<Calls> {
        self.have_told.then_some(self.calls)
    }

    pub(super) fn forget_calls(&mut self) {
        self.have_told = false;
    }

    /// The thread's state, if it has only one and there is only one interpreter, and the newest state of that.
    pub(super) fn only_state(&self) -> Option<(u64, u64)> {
        self.cached.only()
    }

    /// The code objects that the thread has met.
    pub(super) fn codes(&self) -> &Codes {
        &self.codes
    }
}

/// Finds the thread's frames. `known` is what its native frames tell of the interpreter, if that is known from an earlier walk.
/// Returns whether all frames were found, in stack order. Reads nothing unless the thread runs code of the interpreter.
pub(super) fn find(
    thread: &Thread<'_>,
    known: Option<Calls>,
    memory: &mut Memory<'_>,
    found: &mut Found,
    work: &mut Work,
) -> bool {
    let by_code = thread.python.layout.linkage == Linkage::Objects;
    if let Some(native) = thread.native {
        if !native.is_marked() || by_code && !work.are_noted {
            work.calls = thread.calls(native, found);
        }
        (work.are_noted, work.have_told) = (false, true);
    }
    let calls = known.unwrap_or(work.calls);
    if !calls.any {
        return true;
    }
    let Work { cached, codes, data_stack, text, .. } = work;
    let states = cached.states(thread.python, thread.pointer, memory);
    let count = states.iter().position(|state| *state == 0).unwrap_or(states.len());
    let is_alone = count == 1;
    let mut to_sort = !is_alone;
    codes.begin(thread.region.nonce());
    let (certain, trust) = (Certain::NOTHING, Trust::Nothing);
    let mut walker =
        Walker { thread, calls, memory, found, text, codes, data_stack, certain, trust, is_alone };
    let mut complete = true;
    for state in states.into_iter().take(count) {
        complete &= walker.find(state);
    }
    // A call that begins or ends may have no frame. If more lack one, a chain was broken by a frame being linked.
    if complete && calls.evaluations > found.runs().len() + 1 {
        found.push_gap(Gap::Unreadable);
        found.close(thread.innermost);
        to_sort = true;
    }
    if to_sort {
        found.sort();
    }
    let is_complete = complete && !to_sort;
    work.are_noted = is_complete && found.runs().len() == calls.evaluations;
    is_complete
}
