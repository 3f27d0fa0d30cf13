//! The interrupted thread.

use unwind::{FoundBy, StackCache};

use super::descriptor::Python;
use crate::recording::Recording;
use crate::stack::Bounds;

/// The interrupted thread, its interpreter and its stack.
pub(crate) struct Thread<'a> {
    pub(crate) python: &'a Python,
    pub(crate) recording: &'a Recording,
    /// The native walk.
    pub(crate) native: &'a StackCache,
    /// Its `pthread_self`.
    pub(crate) pointer: u64,
    /// Its stack, and the used part of it, if known.
    pub(crate) whole_stack: Bounds,
    pub(crate) stack: Bounds,
    /// No other thread of the process is known.
    pub(crate) is_only: bool,
    /// The native walk reached the root.
    pub(crate) is_walked: bool,
}

/// What the native stack tells of the interpreter.
#[derive(Clone, Copy)]
pub(super) struct Calls {
    /// Its code is on the stack.
    pub(super) any: bool,
    /// Calls of the evaluation loop.
    pub(super) evaluations: usize,
    /// Its code has called the interrupted function, and no signal interrupted its own code.
    pub(super) is_settled: bool,
}

impl Thread<'_> {
    pub(super) fn calls(&self) -> Calls {
        let python = self.python;
        let mut calls = Calls { any: false, evaluations: 0, is_settled: self.is_walked };
        for frame in self.native.frames() {
            let is_own = python.text.holds(frame.address());
            calls.any |= is_own;
            calls.evaluations += usize::from(python.evaluation.holds(frame.address()));
            calls.is_settled &= frame.found_by() == FoundBy::Cfi && !(is_own && frame.is_exact());
        }
        calls
    }
}
