//! The thread states of a thread: found in the lists of the interpreters by the thread's `pthread_self`, then remembered.
//!
//! A thread has one for each interpreter that it has entered. A remembered one is checked again before each use: it must
//! still be in its list, and belong to the thread.

use super::descriptor::Python;
use crate::arch::load;
use crate::interpreter::memory::Memory;

/// Thread states of one thread.
const STATES: usize = 4;
/// Maximum number of interpreters and, in each, of threads that are searched.
const INTERPRETERS: usize = 64;
const THREADS: usize = 8192;

/// The thread states found for a thread; 0 for none.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cached([u64; STATES]);

impl Cached {
    /// The thread states of the thread with this pointer.
    pub(super) fn states(&mut self, python: &Python, thread: u64, memory: &mut Memory<'_>) -> [u64; STATES] {
        let holds = |state: &u64| *state == 0 || is_state_of(python, *state, thread, memory) == Some(true);
        if self.0.first() == Some(&0) || !self.0.iter().all(holds) {
            self.0 = [0; STATES];
            // What was found before the lists became unreadable counts.
            let _ = self.search(python, thread, memory);
        }
        self.0
    }

    fn search(&mut self, python: &Python, thread: u64, memory: &mut Memory<'_>) -> Option<()> {
        let layout = &python.layout;
        let mut places = self.0.iter_mut();
        let mut interpreter = memory.field(python.runtime, layout.interpreters)?;
        for _ in 0..INTERPRETERS {
            if interpreter == 0 {
                break;
            }
            let mut state = memory.field(interpreter, layout.interpreter_threads)?;
            for _ in 0..THREADS {
                if state == 0 {
                    break;
                }
                if memory.field(state, layout.thread_id)? == thread {
                    *places.next()? = state;
                }
                state = memory.field(state, layout.thread_next)?;
            }
            interpreter = memory.field(interpreter, layout.interpreter_next)?;
        }
        Some(())
    }
}

/// Whether `state` belongs to the thread and is in its interpreter's list.
fn is_state_of(python: &Python, state: u64, thread: u64, memory: &mut Memory<'_>) -> Option<bool> {
    let layout = &python.layout;
    if memory.field(state, layout.thread_id)? != thread {
        return Some(false);
    }
    let linked = match memory.field(state, layout.thread_previous)? {
        0 => {
            let interpreter = memory.field(state, layout.thread_interpreter)?;
            // The main interpreter's first state is freed last.
            let is_main = memory.field(python.runtime, layout.interpreters + 8)? == interpreter
                && memory.field(python.runtime, layout.finalizing)? == 0;
            let threads = interpreter.wrapping_add(layout.interpreter_threads.into());
            match is_main {
                // SAFETY: it is alive unless the interpreter is finalizing, which was checked (`trust` has the limits of that).
                true => unsafe { load(threads) },
                false => memory.word(threads)?,
            }
        }
        previous => memory.field(previous, layout.thread_next)?,
    };
    Some(linked == state)
}
