//! The stacks of one region's durable log, which repeat records and counts refer to by number.
//!
//! They are decoded once, into a tree: a stack refers to the frames of the one that it is based on. So memory is
//! bounded by the log. What must never happen here: an index from the log or a record used unchecked.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use shm_format::MAX_DEPTH;
use shm_format::record::RecurringStack;

/// Stacks by number.
#[derive(Default)]
pub(super) struct RecurringStacks {
    known: HashMap<u32, Known, FixedState>,
    /// The frames of all stacks. Each is after its caller.
    frames: Vec<u64>,
    /// Where the frame of each one's caller is; of a root, nowhere.
    callers: Vec<u32>,
    /// When modules were unloaded, and how many stacks had been added before: these do not recur. In order of time.
    unloads: Vec<(u32, u64)>,
    /// Number of stacks added.
    added: u32,
    /// When the last module was loaded (CLOCK_MONOTONIC, ns).
    loaded: u64,
    /// When the threads of the stacks ended, by their numbers; `u64::MAX` while they run.
    thread_ends: HashMap<u32, u64, FixedState>,
}

/// Where no frame is.
const NOWHERE: u32 = u32::MAX;

/// A stack.
struct Known {
    tid: u32,
    seq: u32,
    /// Where its innermost frame is.
    leaf: u32,
    depth: u16,
    /// How many were added before.
    earlier: u32,
    /// When the last module before it in the log was loaded.
    since: u64,
}

/// A stack of a thread.
pub(super) struct Found {
    pub(super) tid: u32,
    /// The thread's number.
    pub(super) seq: u32,
    /// Before this time its modules may not have been loaded (CLOCK_MONOTONIC, ns).
    pub(super) since: u64,
    /// After this time it did not recur.
    pub(super) until: u64,
}

impl RecurringStacks {
    /// Adds a stack. False if no writer writes it.
    pub(super) fn add(&mut self, stack: &RecurringStack<'_>) -> bool {
        let own = stack.frames.iter();
        let depth = usize::from(stack.shared) + own.len();
        let caller = if stack.shared == 0 { Some(NOWHERE) } else { self.caller_in(stack) };
        let fits = depth <= MAX_DEPTH && self.frames.len() + own.len() < NOWHERE as usize;
        let Some(mut leaf) = caller.filter(|_| fits) else { return false };
        for word in own.rev() {
            self.callers.push(leaf);
            leaf = self.frames.len() as u32;
            self.frames.push(word);
        }
        let (tid, seq) = (stack.tid, stack.seq);
        let known = Known { tid, seq, leaf, depth: depth as u16, earlier: self.added, since: self.loaded };
        self.added = self.added.saturating_add(1);
        self.known.insert(stack.id, known);
        self.thread_ends.entry(stack.seq).or_insert(u64::MAX);
        true
    }

    /// Where the innermost frame is that a stack has of its base.
    fn caller_in(&self, stack: &RecurringStack<'_>) -> Option<u32> {
        let base = self.known.get(&stack.base)?;
        let others = base.depth.checked_sub(stack.shared)?;
        (0..others).try_fold(base.leaf, |frame, _| self.callers.get(frame as usize).copied())
    }

    /// Notes that a module was loaded then (CLOCK_MONOTONIC, ns).
    pub(super) fn module_loaded(&mut self, ns: u64) {
        self.loaded = self.loaded.max(ns);
    }

    /// Notes that a module was unloaded then (CLOCK_MONOTONIC, ns). Stacks of before are not found again by the process.
    pub(super) fn module_unloaded(&mut self, ns: u64) {
        if self.unloads.last().is_none_or(|(added, _)| *added != self.added) {
            self.unloads.push((self.added, ns));
        }
    }

    /// Notes that a thread ended then (CLOCK_MONOTONIC, ns).
    pub(super) fn thread_ended(&mut self, seq: u32, ns: u64) {
        if let Some(end) = self.thread_ends.get_mut(&seq) {
            *end = ns;
        }
    }

    /// Whether there is a stack of this number.
    pub(super) fn has(&self, number: u32) -> bool {
        self.known.contains_key(&number)
    }

    /// The frames of a stack, root first, in `buffer`.
    pub(super) fn frames<'b>(&self, number: u32, buffer: &'b mut Vec<u64>) -> Option<&'b [u64]> {
        let known = self.known.get(&number)?;
        buffer.clear();
        let mut at = known.leaf as usize;
        while let (Some(word), Some(caller)) = (self.frames.get(at), self.callers.get(at)) {
            buffer.push(*word);
            at = *caller as usize;
        }
        buffer.reverse();
        Some(buffer)
    }

    /// A stack, and whose it is.
    pub(super) fn get(&self, number: u32) -> Option<Found> {
        let known = self.known.get(&number)?;
        let unload = self.unloads.partition_point(|(added, _)| *added <= known.earlier);
        let unloaded = self.unloads.get(unload).map_or(u64::MAX, |(_, ns)| *ns);
        let ended = self.thread_ends.get(&known.seq).copied().unwrap_or(u64::MAX);
        let until = unloaded.min(ended).saturating_sub(1);
        Some(Found { tid: known.tid, seq: known.seq, since: known.since, until })
    }
}

#[cfg(test)]
mod tests {
    use shm_format::record::FrameWords;

    use super::*;

    fn stack(id: u32, (base, shared): (u32, u16), own: &[u64]) -> RecurringStack<'_> {
        RecurringStack { id, tid: 41, seq: 1, base, shared, frames: FrameWords::new(own) }
    }

    fn frames(stacks: &RecurringStacks, number: u32) -> Option<Vec<u64>> {
        stacks.frames(number, &mut vec![9]).map(<[u64]>::to_vec)
    }

    #[test]
    fn a_stack_has_the_outermost_frames_of_its_base() {
        let mut stacks = RecurringStacks::default();
        assert!(stacks.add(&stack(1, (0, 0), &[4, 3, 2, 1])));
        assert!(stacks.add(&stack(2, (1, 3), &[6, 5])));
        assert!(stacks.add(&stack(3, (2, 4), &[7])));
        assert!(stacks.add(&stack(4, (3, 2), &[])));
        let expected = [&[1, 2, 3, 4][..], &[1, 2, 3, 5, 6], &[1, 2, 3, 5, 7], &[1, 2]];
        for (number, expected) in (1..).zip(expected) {
            assert_eq!(frames(&stacks, number).as_deref(), Some(expected), "{number}");
        }
        assert_eq!(frames(&stacks, 5), None);
        assert_eq!(stacks.frames.len(), 7, "frames that are shared are kept once");
    }

    #[test]
    fn what_no_writer_writes_is_not_added() {
        let mut stacks = RecurringStacks::default();
        let deep = [1; MAX_DEPTH];
        assert!(stacks.add(&stack(1, (0, 0), &deep)));
        for base in [(2, 1), (3, 1), (1, MAX_DEPTH as u16 + 1), (1, 1), (0, 1)] {
            assert!(!stacks.add(&stack(2, base, &deep)), "{base:?}");
            assert!(!stacks.has(2));
        }
        // One that is based on itself, once there is such a number.
        assert!(stacks.add(&stack(1, (1, 2), &[5])));
        assert_eq!(frames(&stacks, 1), Some(vec![1, 1, 5]));
    }

    #[test]
    fn a_stack_recurs_until_a_module_is_unloaded_or_its_thread_ends() {
        let mut stacks = RecurringStacks::default();
        let add = |stacks: &mut RecurringStacks, id, seq| {
            assert!(stacks.add(&RecurringStack { tid: 40 + seq, seq, ..stack(id, (0, 0), &[3, 2, 1]) }));
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
        assert_eq!((found.tid, found.seq, found.since), (42, 2, 60));
        assert_eq!(stacks.get(1).expect("a stack").since, 50);
        assert_eq!(frames(&stacks, 3), Some(vec![1, 2, 3]));
    }
}
