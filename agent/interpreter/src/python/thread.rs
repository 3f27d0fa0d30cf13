//! The interrupted thread.

use platform::bounds::Bounds;
use python_layout::Linkage;
use shm_format::Region;
use unwind::{FoundBy, Frame, StackCache};

use super::descriptor::Python;
use crate::found::Found;

/// The interrupted thread, its interpreter and its stack.
pub(crate) struct Thread<'a> {
    pub(crate) python: &'a Python,
    pub(crate) region: &'a Region,
    /// The native walk; `None` if an earlier one found the same, from code outside the interpreter.
    pub(crate) native: Option<&'a StackCache>,
    /// The stack pointer of the innermost native frame, 0 if unknown.
    pub(crate) innermost: u64,
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
pub struct Calls {
    /// Its code is on the stack.
    pub(super) any: bool,
    /// Calls of the evaluation loop.
    pub(super) evaluations: usize,
    /// All of these are noted among the frames found.
    pub(super) are_noted: bool,
    /// Its code has called the interrupted function, and no signal interrupted its own code.
    pub(super) is_settled: bool,
}

impl Calls {
    /// Bits of [`packed`](Self::packed).
    const ANY: u16 = 1;
    const SETTLED: u16 = 2;
    const EVALUATIONS: u32 = 2;

    /// All of it in a few bits; `None` if it does not fit, or some is noted elsewhere.
    pub fn packed(self) -> Option<u16> {
        let evaluations = u16::try_from(self.evaluations << Self::EVALUATIONS).ok()?;
        let (any, settled) = (u16::from(self.any), u16::from(self.is_settled));
        (!self.are_noted).then_some(evaluations | (any * Self::ANY) | (settled * Self::SETTLED))
    }

    /// What [`packed`](Self::packed) has put there.
    pub fn unpack(packed: u16) -> Self {
        Self {
            any: packed & Self::ANY != 0,
            evaluations: usize::from(packed >> Self::EVALUATIONS),
            are_noted: false,
            is_settled: packed & Self::SETTLED != 0,
        }
    }
}

impl Thread<'_> {
    /// Looks through the native stack, once. Notes each call of the evaluation loop, where it is known by its code alone.
    pub(super) fn calls(&self, native: &StackCache, found: &mut Found) -> Calls {
        let python = self.python;
        let by_code = python.layout.linkage == Linkage::Objects;
        let mut calls = Calls { any: false, evaluations: 0, are_noted: by_code, is_settled: self.is_walked };
        // The bits of all frames: `FoundBy::Cfi` is 0, so that is what they say together if all frames say it.
        let mut found_by = 0;
        let pointers = native.stack_pointers().chain(core::iter::repeat(0));
        for (frame, pointer) in native.frames().iter().zip(pointers) {
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
