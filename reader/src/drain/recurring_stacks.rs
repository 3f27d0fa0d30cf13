//! The stacks of one region's durable log, which repeat records and counts refer to by number.
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
    known: HashMap<u32, Known, FixedState>,
    /// Frames of all stacks, one stack after the other, root first.
    frames: Vec<u64>,
    /// When modules were unloaded, and how many frames the stacks had that were in the log before: these stacks do not
    /// recur. In order of time.
    unloads: Vec<(usize, u64)>,
    /// When the last module was loaded (CLOCK_MONOTONIC, ns).
    loaded: u64,
    /// When the threads of the stacks ended, by their numbers; `u64::MAX` while they run.
    thread_ends: HashMap<u32, u64, FixedState>,
}

/// A stack.
struct Known {
    tid: u32,
    seq: u32,
    /// Where its frames are.
    frames: Range<usize>,
    /// When the last module before it in the log was loaded.
    since: u64,
}

/// A stack of a thread.
pub(super) struct Found<'s> {
    pub(super) tid: u32,
    /// The thread's number.
    pub(super) seq: u32,
    /// The frames, root first.
    pub(super) frames: &'s [u64],
    /// Before this time its modules may not have been loaded (CLOCK_MONOTONIC, ns).
    pub(super) since: u64,
    /// After this time it did not recur.
    pub(super) until: u64,
}

impl RecurringStacks {
    /// Adds a stack.
    pub(super) fn add(&mut self, stack: &RecurringStack<'_>) {
        let start = self.frames.len();
        self.frames.extend(stack.frames.iter().rev());
        let frames = start..self.frames.len();
        let known = Known { tid: stack.tid, seq: stack.seq, frames, since: self.loaded };
        self.known.insert(stack.id, known);
        self.thread_ends.entry(stack.seq).or_insert(u64::MAX);
    }

    /// Notes that a module was loaded then (CLOCK_MONOTONIC, ns).
    pub(super) fn module_loaded(&mut self, ns: u64) {
        self.loaded = self.loaded.max(ns);
    }

    /// Notes that a module was unloaded then (CLOCK_MONOTONIC, ns). Stacks of before are not found again by the process.
    pub(super) fn module_unloaded(&mut self, ns: u64) {
        let before = self.frames.len();
        if self.unloads.last().is_none_or(|(frames, _)| *frames != before) {
            self.unloads.push((before, ns));
        }
    }

    /// Notes that a thread ended then (CLOCK_MONOTONIC, ns).
    pub(super) fn thread_ended(&mut self, seq: u32, ns: u64) {
        if let Some(end) = self.thread_ends.get_mut(&seq) {
            *end = ns;
        }
    }

    /// The frames of a stack, root first.
    pub(super) fn frames(&self, number: u32) -> Option<&[u64]> {
        self.frames.get(self.known.get(&number)?.frames.clone())
    }

    /// A stack, and whose it is.
    pub(super) fn get(&self, number: u32) -> Option<Found<'_>> {
        let known = self.known.get(&number)?;
        let unload = self.unloads.partition_point(|(frames, _)| *frames < known.frames.end);
        let unloaded = self.unloads.get(unload).map_or(u64::MAX, |(_, ns)| *ns);
        let ended = self.thread_ends.get(&known.seq).copied().unwrap_or(u64::MAX);
        let frames = self.frames.get(known.frames.clone())?;
        let until = unloaded.min(ended).saturating_sub(1);
        Some(Found { tid: known.tid, seq: known.seq, frames, since: known.since, until })
    }
}

#[cfg(test)]
mod tests {
    use shm_format::record::FrameWords;

    use super::*;

    #[test]
    fn a_stack_recurs_until_a_module_is_unloaded_or_its_thread_ends() {
        let mut stacks = RecurringStacks::default();
        let add = |stacks: &mut RecurringStacks, id, seq| {
            stacks.add(&RecurringStack { id, tid: 40 + seq, seq, frames: FrameWords::new(&[3, 2, 1]) });
        };
        let until = |stacks: &RecurringStacks, id| stacks.get(id).map(|found| found.until);
        stacks.module_loaded(50);
        add(&mut stacks, 1, 1);
        stacks.module_loaded(60);
        stacks.module_unloaded(100);
        stacks.module_unloaded(110);
        add(&mut stacks, 2, 1);
        add(&mut stacks, 3, 2);
        assert_eq!(
            [1, 2, 3, 4].map(|id| until(&stacks, id)),
            [Some(99), Some(u64::MAX - 1), Some(u64::MAX - 1), None]
        );
        stacks.thread_ended(2, 150);
        stacks.thread_ended(9, 150);
        assert_eq!(stacks.thread_ends.len(), 2, "threads without stacks are not kept");
        stacks.module_unloaded(200);
        assert_eq!([1, 2, 3].map(|id| until(&stacks, id)), [Some(99), Some(199), Some(149)]);
        let found = stacks.get(3).expect("a stack");
        assert_eq!((found.tid, found.seq, found.frames, found.since), (42, 2, [1, 2, 3].as_slice(), 60));
        assert_eq!(stacks.get(1).expect("a stack").since, 50);
        assert_eq!(stacks.frames(3), Some(found.frames));
    }
}
