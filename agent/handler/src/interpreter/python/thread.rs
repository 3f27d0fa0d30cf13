//! The interrupted thread.

use unwind::{FoundBy, Frame, StackCache};

use super::descriptor::Python;
use crate::recording::Recording;
use crate::stack::Bounds;

/// What the interrupted thread runs, and where.
pub(crate) struct Thread<'a> {
    pub(crate) python: &'a Python,
    pub(crate) recording: &'a Recording,
    /// The native walk.
    pub(crate) native: &'a StackCache,
    /// What `pthread_self` says.
    pub(crate) pointer: u64,
    /// The used part of its stack, as far as it is known.
    pub(crate) stack: Bounds,
    /// The native walk got to its end.
    pub(crate) is_walked: bool,
}

impl Thread<'_> {
    /// True if the interpreter's code has called what was interrupted, and was itself interrupted nowhere.
    pub(super) fn is_settled(&self) -> bool {
        let is_called = |frame: &Frame| {
            frame.found_by() == FoundBy::Cfi && !(frame.is_exact() && self.python.text.holds(frame.address()))
        };
        self.is_walked && self.native.frames().iter().all(is_called)
    }
}
