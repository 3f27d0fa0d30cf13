//! The interrupted thread.

use unwind::{FoundBy, Frame, StackCache};

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

impl Thread<'_> {
    /// True if the interpreter's code has called the interrupted function, and no signal interrupted its own code.
    pub(super) fn is_settled(&self) -> bool {
        let is_called = |frame: &Frame| {
            frame.found_by() == FoundBy::Cfi && !(frame.is_exact() && self.python.text.holds(frame.address()))
        };
        self.is_walked && self.native.frames().iter().all(is_called)
    }
}
