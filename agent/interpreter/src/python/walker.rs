//! The state of a walk over the frames of one thread state.

use platform::arch::load_field;

use super::certain::{Certain, Trust};
use super::codes::Codes;
use super::data_stack::DataStack;
use super::thread::{Calls, Thread};
use super::unreadable::Unreadable;
use crate::found::Found;
use crate::memory::Memory;

/// Buffer for a function's name, file and line table.
pub(crate) type Text = [u8; 8192];

/// Walks the frames of one thread state.
pub(super) struct Walker<'a, 'm> {
    pub(super) thread: &'a Thread<'a>,
    pub(super) calls: Calls,
    pub(super) memory: &'a mut Memory<'m>,
    pub(super) found: &'a mut Found,
    pub(super) text: &'a mut Text,
    pub(super) codes: &'a mut Codes,
    pub(super) data_stack: &'a mut DataStack,
    pub(super) certain: Certain,
    pub(super) trust: Trust,
    /// The thread has no other state.
    pub(super) is_alone: bool,
}

impl<'a> Walker<'a, '_> {
    /// The thread, for longer than the walker is borrowed.
    #[inline]
    pub(super) fn thread(&self) -> &'a Thread<'a> {
        self.thread
    }

    /// The same as [`field`](Self::field), of a structure that is likely to be on the thread's stack.
    #[inline]
    pub(super) fn stack_field(&mut self, base: u64, offset: u16) -> Result<u64, Unreadable> {
        match self.thread.stack.hold(base.wrapping_add(offset.into())) {
            // SAFETY: the field lies in the used part of the thread's stack.
            true => Ok(unsafe { load_field(base, offset) }),
            false => self.field(base, offset),
        }
    }

    /// The word at `offset` of the structure at `base`.
    pub(super) fn field(&mut self, base: u64, offset: u16) -> Result<u64, Unreadable> {
        self.memory.field(base, offset).ok_or(Unreadable)
    }
}
