//! The interrupted thread.

use python_layout::Linkage;
use unwind::{FoundBy, Frame, StackCache};

use super::descriptor::Python;
use crate::interpreter::found::Found;
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
    /// All of these are noted among the frames found.
    pub(super) are_noted: bool,
    /// Its code has called the interrupted function, and no signal interrupted its own code.
    pub(super) is_settled: bool,
}

impl Thread<'_> {
    /// Looks through the native stack, once. Notes each call of the evaluation loop, where it is known by its code alone.
    pub(super) fn calls(&self, found: &mut Found) -> Calls {
        let python = self.python;
        let by_code = python.layout.linkage == Linkage::Objects;
        let mut calls = Calls { any: false, evaluations: 0, are_noted: by_code, is_settled: self.is_walked };
        // The bits of all frames: `FoundBy::Cfi` is 0, so that is what they say together if all frames say it.
        let mut found_by = 0;
        let pointers = self.native.stack_pointers().chain(core::iter::repeat(0));
        for (frame, pointer) in self.native.frames().iter().zip(pointers) {
            found_by |= frame.bits();
            let address = frame.address();
            if !python.text.holds(address) {
                continue;
            }
            calls.any = true;
            calls.is_settled &= !frame.is_exact();
            if python.evaluation.holds(address) {
                if by_code {
                    calls.are_noted &= found.note(calls.evaluations, pointer).is_some();
                }
                calls.evaluations += 1;
            }
        }
        calls.is_settled &= Frame::from_bits(found_by).found_by() == FoundBy::Cfi;
        calls
    }
}
