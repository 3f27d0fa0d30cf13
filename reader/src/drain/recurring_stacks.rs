//! The stacks of one region's durable log, which repeat records refer to by number.
//!
//! They are decoded once. Memory is bounded by the log. What must never happen here: an index from the log or a record
//! used unchecked.

use std::collections::HashMap;
use std::ops::Range;

use foldhash::fast::FixedState;
use shm_format::record::RecurringStack;

/// Stacks by number.
#[derive(Default)]
pub(super) struct RecurringStacks {
    /// Where the frames of each stack are.
    ranges: HashMap<u32, Range<usize>, FixedState>,
    /// Frames of all stacks, one stack after the other, root first.
    frames: Vec<u64>,
}

impl RecurringStacks {
    /// Adds a stack.
    pub(super) fn add(&mut self, stack: &RecurringStack<'_>) {
        let start = self.frames.len();
        self.frames.extend(stack.frames.iter().rev());
        self.ranges.insert(stack.id, start..self.frames.len());
    }

    /// The frames of a stack, root first.
    pub(super) fn get(&self, number: u32) -> Option<&[u64]> {
        self.frames.get(self.ranges.get(&number)?.clone())
    }
}
