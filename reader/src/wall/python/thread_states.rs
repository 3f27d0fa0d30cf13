//! The thread states of a thread, found in the interpreters' lists by the thread's number, which they have since 3.11. In 3.10, that of
//! a thread which runs Python points to its stack.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use super::interpreter::Interpreter;
use crate::wall::memory::RemoteMemory;

/// Maximum number of entries read of all lists together, and of thread states of one thread.
const ENTRIES: usize = 8192;
const STATES: usize = 4;

/// A thread.
pub(super) struct Thread {
    /// Its number in its own PID namespace.
    pub(super) native_id: u32,
    /// The used part of its stack.
    pub(super) stack: RangeInclusive<u64>,
}

impl Thread {
    fn has(&self, interpreter: &Interpreter, state: u64, memory: &mut RemoteMemory<'_>) -> Option<bool> {
        let layout = &interpreter.layout;
        Some(match layout.thread_native_id {
            0 => self.stack.contains(&memory.field(state, layout.thread_c_frame)?),
            native_id => memory.field(state, native_id)? == u64::from(self.native_id),
        })
    }
}

/// The thread states that were found, by the numbers of their threads.
#[derive(Default)]
pub(super) struct ThreadStates {
    found: HashMap<u32, u64>,
}

impl ThreadStates {
    /// The thread states of a thread. None while the interpreter is being finalized, which frees states in use.
    pub(super) fn of_thread(
        &mut self,
        interpreter: &Interpreter,
        thread: &Thread,
        memory: &mut RemoteMemory<'_>,
    ) -> Vec<u64> {
        if memory.field(interpreter.runtime, interpreter.layout.finalizing) != Some(0) {
            return Vec::new();
        }
        let known = self.found.get(&thread.native_id).copied();
        if let Some(state) =
            known.filter(|&state| is_only_one(interpreter, thread, state, memory) == Some(true))
        {
            return vec![state];
        }
        let mut found = Vec::new();
        // What was found before a list became unreadable counts.
        let _ = search(interpreter, thread, memory, &mut found);
        if let [state] = found[..] {
            if self.found.len() >= ENTRIES {
                self.found.clear();
            }
            self.found.insert(thread.native_id, state);
        }
        found
    }
}

/// Whether this is still a state of the thread, in the list of the only interpreter.
fn is_only_one(
    interpreter: &Interpreter,
    thread: &Thread,
    state: u64,
    memory: &mut RemoteMemory<'_>,
) -> Option<bool> {
    let layout = &interpreter.layout;
    let main = memory.field(interpreter.runtime, layout.interpreters)?;
    if memory.field(main, layout.interpreter_next)? != 0 || !thread.has(interpreter, state, memory)? {
        return Some(false);
    }
    let linked = match memory.field(state, layout.thread_previous)? {
        0 => memory.field(main, layout.interpreter_threads)?,
        previous => memory.field(previous, layout.thread_next)?,
    };
    Some(linked == state)
}

fn search(
    interpreter: &Interpreter,
    thread: &Thread,
    memory: &mut RemoteMemory<'_>,
    found: &mut Vec<u64>,
) -> Option<()> {
    let layout = &interpreter.layout;
    let mut of_list = memory.field(interpreter.runtime, layout.interpreters)?;
    let mut state = 0;
    for _ in 0..ENTRIES {
        if state != 0 {
            if thread.has(interpreter, state, memory)? {
                found.push(state);
            }
            state = memory.field(state, layout.thread_next)?;
        } else if of_list != 0 {
            state = memory.field(of_list, layout.interpreter_threads)?;
            of_list = memory.field(of_list, layout.interpreter_next)?;
        } else {
            break;
        }
        if found.len() == STATES {
            break;
        }
    }
    Some(())
}
