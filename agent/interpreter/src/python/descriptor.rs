//! An interpreter as the agent has found it among the loaded objects.

use platform::arch::{load, load_field};
use platform::bounds::Bounds;
use platform::thread_pointer;
use python_layout::Layout;

/// The largest distance of a block from the thread pointer that is taken for a static one.
const FARTHEST: u64 = 4096;
/// Thread-local variables that are looked at.
const MOST_WORDS: u64 = 16;

/// An interpreter that is loaded in this process.
#[derive(Clone, Copy, Debug)]
pub struct Python {
    /// The field offsets of its structures.
    pub layout: Layout,
    /// Address of `_PyRuntime`. The fields that the layout describes lie in `data`.
    pub runtime: u64,
    /// Address of `PyCode_Type`.
    pub code_type: u64,
    /// The code of its object file.
    pub text: Code,
    /// The evaluation loop, without the parts that compilers move elsewhere.
    pub evaluation: Code,
    /// The data of its object file, which stays mapped as long as the object is loaded.
    pub data: Bounds,
    /// Its thread-local variables, one of which is the current thread state since 3.12.
    pub thread_locals: ThreadLocals,
}

impl Python {
    /// The first interpreter of the list, and the main one.
    #[inline]
    pub(crate) fn interpreters(&self) -> (u64, u64) {
        (self.of_runtime(self.layout.interpreters), self.of_runtime(self.layout.interpreters + 8))
    }

    /// It has begun to free what may be in use.
    #[inline]
    pub(crate) fn is_finalizing(&self) -> bool {
        self.of_runtime(self.layout.finalizing) != 0
    }

    /// Whether the thread with this pointer is attached to the interpreter with `state`, which is its own; false if it is not known.
    #[inline]
    pub(crate) fn is_attached(&self, thread: u64, state: u64) -> bool {
        match self.layout.attached {
            0 => self.thread_locals.contain(thread, state),
            attached => self.of_runtime(attached) == state,
        }
    }

    fn of_runtime(&self, offset: u16) -> u64 {
        // SAFETY: the field lies in the data of the object, which stays mapped while a thread runs its code.
        unsafe { load_field(self.runtime, offset) }
    }
}

/// An object's block of the static thread-local storage: in each thread at the same distance from the thread pointer
/// (variant II of the ELF specification of thread-local storage).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadLocals {
    /// Bytes from the first word to the thread pointer.
    below: u64,
    /// 0 if there is none, or its place is not known.
    words: u64,
}

impl ThreadLocals {
    /// The block that the calling thread has at this address. Empty if it may have been allocated on demand, and is elsewhere
    /// in other threads.
    #[must_use]
    pub fn at(address: u64, bytes: u64) -> Self {
        thread_pointer::pthread_self()
            .map_or_else(Self::default, |pointer| Self::new(pointer.wrapping_sub(address), bytes))
    }

    /// The program's block, which is next to the thread pointer.
    #[must_use]
    pub fn of_program(bytes: u64, alignment: u64) -> Self {
        Self::new(bytes.next_multiple_of(alignment.clamp(1, FARTHEST)), bytes)
    }

    fn new(below: u64, bytes: u64) -> Self {
        match below <= FARTHEST && below.is_multiple_of(8) {
            true => Self { below, words: (bytes.min(below) / 8).min(MOST_WORDS) },
            false => Self::default(),
        }
    }

    /// Whether one of the words is `value`, in the thread with this pointer.
    pub(crate) fn contain(self, thread: u64, value: u64) -> bool {
        let first = thread.wrapping_sub(self.below);
        // SAFETY: a thread that executes the interpreter has the whole block, until it ends: the interpreter uses these variables.
        (0..self.words).any(|word| unsafe { load(first.wrapping_add(8 * word)) } == value)
    }
}

/// A range of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// First address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
}

impl Code {
    #[inline]
    pub(crate) fn holds(self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}
