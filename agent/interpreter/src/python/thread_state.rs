//! The thread states of a thread: found in the lists of the interpreters by the thread's `pthread_self`, then remembered.
//!
//! A thread has one for each interpreter that it has entered. A remembered one is checked again before each use: it must
//! still be in its list, and belong to the thread. New states are put first in their list, and new interpreters in theirs:
//! so whatever was added since the last walk is found there. (A state at the address of a freed one may be missed until the
//! list changes again.)

use platform::arch::{load, load_field};
use platform::bounds::Bounds;
use python_layout::Layout;

use super::descriptor::Python;
use crate::memory::{Lasting, Memory};

/// Thread states of one thread.
const STATES: usize = 4;
/// Maximum number of interpreters and, in each, of threads that are searched.
const INTERPRETERS: usize = 64;
const THREADS: usize = 8192;

/// The thread states found for a thread; 0 for none, after all others.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cached {
    states: [u64; STATES],
    /// The heads of the lists that were searched.
    heads: Heads,
}

/// What was added last.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Heads {
    /// The first interpreter of the list.
    interpreter: u64,
    /// The first thread state of the main interpreter.
    state: u64,
    /// The main interpreter is the only one.
    is_only: bool,
}

impl Heads {
    fn read(python: &Python, memory: &mut Memory<'_>) -> Option<Heads> {
        let layout = &python.layout;
        let (interpreter, main) = python.interpreters();
        let threads = main.checked_add(layout.interpreter_threads.into())?;
        let is_alive = main != 0 && !python.is_finalizing();
        let state = match is_alive {
            // SAFETY: the main interpreter is alive unless it is finalizing, which was checked (`trust` has the limits of that).
            true => unsafe { load(threads) },
            false => memory.word(threads)?,
        };
        Some(Heads { interpreter, state, is_only: interpreter == main })
    }
}

impl Cached {
    /// The thread's state, if it has only one and there is only one interpreter, and the newest state of that.
    pub(super) fn only(&self) -> Option<(u64, u64)> {
        let ([state, other, ..], Heads { state: newest, is_only, .. }) = (self.states, self.heads);
        (state != 0 && other == 0 && is_only).then_some((state, newest))
    }

    /// The thread states of the thread with this pointer.
    pub(super) fn states(&mut self, python: &Python, thread: u64, memory: &mut Memory<'_>) -> [u64; STATES] {
        let Some(heads) = Heads::read(python, memory) else {
            *self = Self::default();
            return self.states;
        };
        let holds = |state: &u64| is_state_of(python, *state, thread, heads, memory) == Some(true);
        let stand =
            self.states.first() != Some(&0) && self.states.iter().take_while(|state| **state != 0).all(holds);
        // With other interpreters all lists are searched in each walk.
        let since = if stand && heads.is_only && self.heads.is_only { self.heads.state } else { 0 };
        if since == 0 {
            self.states = [0; STATES];
        }
        self.heads = heads;
        if heads.state != since && self.search(python, thread, since, memory).is_none() {
            // What was found before the lists became unreadable counts, for this walk.
            self.heads = Heads::default();
        }
        self.states
    }

    /// Adds what precedes the state `since` in each list.
    #[cold]
    #[inline(never)]
    fn search(&mut self, python: &Python, thread: u64, since: u64, memory: &mut Memory<'_>) -> Option<()> {
        let layout = &python.layout;
        let mut interpreter = self.heads.interpreter;
        for _ in 0..INTERPRETERS {
            if interpreter == 0 {
                break;
            }
            let mut state = memory.field(interpreter, layout.interpreter_threads)?;
            for _ in 0..THREADS {
                if state == 0 || state == since {
                    break;
                }
                if memory.field(state, layout.thread_id)? == thread && !self.states.contains(&state) {
                    *self.states.iter_mut().find(|entry| **entry == 0)? = state;
                }
                state = memory.field(state, layout.thread_next)?;
            }
            interpreter = memory.field(interpreter, layout.interpreter_next)?;
        }
        Some(())
    }
}

/// Whether `state` belongs to the thread and is in its interpreter's list.
fn is_state_of(
    python: &Python,
    state: u64,
    thread: u64,
    heads: Heads,
    memory: &mut Memory<'_>,
) -> Option<bool> {
    let layout = &python.layout;
    if state == heads.state {
        // SAFETY: it is in the list of a living interpreter.
        let is_own = unsafe { load_field(state, layout.thread_id) } == thread;
        if is_own {
            // SAFETY: nobody frees the state that a thread runs with, and it is the newest of this thread.
            unsafe { memory.keep(Lasting::State, fields(layout, state)) };
        }
        return Some(is_own);
    }
    if memory.field(state, layout.thread_id)? != thread {
        return Some(false);
    }
    let linked = match memory.field(state, layout.thread_previous)? {
        0 => {
            let interpreter = memory.field(state, layout.thread_interpreter)?;
            memory.field(interpreter, layout.interpreter_threads)?
        }
        previous => memory.field(previous, layout.thread_next)?,
    };
    Some(linked == state)
}

/// The part of a thread state that is read.
fn fields(layout: &Layout, state: u64) -> Bounds {
    let chunk_top = if layout.thread_chunk == 0 { 0 } else { layout.thread_chunk + 8 };
    let last =
        [layout.thread_id, layout.thread_interpreter, layout.thread_frame, layout.thread_c_frame, chunk_top];
    let last = last.into_iter().fold(0, u16::max);
    Bounds { low: state, high: state.saturating_add(u64::from(last) + 8) }
}
