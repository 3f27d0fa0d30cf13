//! The Python frames of blocked threads, read from outside (CPython 3.10 to 3.14).
//!
//! A blocked thread neither links nor frees its frames, so they are as its handler would find them
//! (`agent/interpreter/src/python` has the reasons), and need no sample in the process. Should the thread have run meanwhile,
//! the caller drops the stack. Other threads may free what only they use, and the process may lie: every word is checked or read as
//! it is, and a run of frames that cannot be followed ends with a mark.
//!
//! What must never happen here: a wait for the process, a frame of another thread.

mod frames;
mod functions;
mod interpreter;
mod placing;
mod thread_states;

use std::cell::OnceCell;

use selfwind_profile::profile_file::InterpretedFunction;

use super::memory::RemoteMemory;
use super::stack::NativeStack;
use frames::Frames;
use functions::Functions;
use interpreter::Interpreter;
use thread_states::{Thread, ThreadStates};

/// The key of the setting in which the agent says where it found the interpreter.
pub(crate) const PYTHON_AT: &str = "python at";

/// The interpreter of a process.
#[derive(Default)]
pub(super) struct Python {
    /// As the agent described it.
    described: String,
    /// Read at the first stack; `None` if it is of another version.
    interpreter: OnceCell<Option<Interpreter>>,
    thread_states: ThreadStates,
    functions: Functions,
}

impl Python {
    /// Takes in where the interpreter is, as its agent describes it.
    pub(super) fn is_at(&mut self, described: &str) {
        if self.described != described {
            self.described = described.into();
            self.interpreter = OnceCell::new();
            self.thread_states = ThreadStates::default();
            self.functions.forget();
        }
    }

    /// Begins a pass over the threads: names are read again.
    pub(super) fn begin_pass(&mut self) {
        self.functions.begin_pass();
    }

    /// The native stack of a blocked thread with its Python frames in their places. `native_id` is the thread's number in its own
    /// PID namespace.
    pub(super) fn add_frames(
        &mut self,
        native: NativeStack,
        native_id: u32,
        memory: &mut RemoteMemory<'_>,
    ) -> NativeStack {
        let read = || Interpreter::read(&self.described, memory);
        let Some(interpreter) = self.interpreter.get_or_init(read) else { return native };
        let low = native.pointers.iter().copied().find(|pointer| *pointer != 0).unwrap_or(u64::MAX);
        let high = native.pointers.iter().copied().max().unwrap_or(0);
        let thread = Thread { native_id, stack: low..=high };
        let mut runs = Vec::new();
        for state in self.thread_states.of_thread(interpreter, &thread, memory) {
            runs.extend(Frames::new(interpreter, &mut self.functions, memory).of_state(state, low));
        }
        placing::place(native, runs)
    }

    /// The functions that were met for the first time since the last call, as those of this process.
    pub(super) fn take_new_functions(
        &mut self,
        process: u32,
    ) -> impl Iterator<Item = InterpretedFunction> + '_ {
        self.functions.take_new().map(move |function| InterpretedFunction { process, ..function })
    }
}
