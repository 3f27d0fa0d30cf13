//! Records that were read from a pool but not yet acknowledged to it.
//!
//! The reader copies a sample out of its chunk, the merge holds it until its turn, and the profile writer stores it in a
//! block. Only after that block is on file does the reader acknowledge the chunk. If the recorder is killed earlier, the
//! next recorder finds the same records again. A stack that is still waiting for its kernel part by then delays the
//! acknowledgement of its chunk (`Process::acknowledge`). What must never happen here: acknowledging a record that is not
//! in the profile.

use std::collections::VecDeque;

use crate::drain::process::{Positions, Process};

/// A batch that has waited for more passes than this is stuck: its samples have timestamps in the future.
const MAX_PASSES: u32 = 32;
/// Passes until the end event of a process is in the profile.
const PASSES_TO_END: u32 = 2;

/// What was drained and not acknowledged: one batch per pass, oldest first.
#[derive(Default)]
pub(crate) struct Unacknowledged {
    batches: VecDeque<Batch>,
}

/// What one pass drained.
#[derive(Default)]
pub(crate) struct Batch {
    /// Read positions, with the number of their process.
    pub(crate) positions: Vec<(u32, Positions)>,
    /// Processes that ended.
    pub(crate) ended: Vec<Process>,
    /// Writers are short of free chunks, and these would help.
    pub(super) urgent: bool,
    /// Passes until its last sample is in the merge.
    pub(crate) passes_to_merge: u32,
    /// How many samples the merge had received by then.
    arrivals: Option<u64>,
    age: u32,
}

impl Unacknowledged {
    /// Adds what a pass drained.
    pub(crate) fn add(&mut self, mut batch: Batch) {
        if !batch.ended.is_empty() {
            batch.urgent = true;
            batch.passes_to_merge = batch.passes_to_merge.max(PASSES_TO_END);
        }
        if !batch.positions.is_empty() || !batch.ended.is_empty() {
            self.batches.push_back(batch);
        }
    }

    /// Ends a pass. `arrivals` is how many samples the merge has received so far.
    pub(super) fn end_pass(&mut self, arrivals: u64) {
        for batch in &mut self.batches {
            if batch.age == batch.passes_to_merge {
                batch.arrivals = Some(arrivals);
            }
            batch.age += 1;
        }
    }

    /// True if writers are short of free chunks.
    pub(super) fn is_urgent(&self) -> bool {
        self.batches.iter().any(|batch| batch.urgent)
    }

    /// True if the oldest batch has waited so long that its timestamps cannot be right.
    pub(super) fn is_stuck(&self) -> bool {
        self.batches.front().is_some_and(|batch| batch.age > MAX_PASSES)
    }

    /// True if the oldest batch has left the merge, whose oldest remaining sample is number `oldest`.
    pub(super) fn has_left_merge(&self, oldest: u64) -> bool {
        self.batches.front().is_some_and(|batch| batch.arrivals.is_some_and(|arrivals| arrivals < oldest))
    }

    /// Removes and returns the batches that have left the merge. The caller has flushed the profile.
    pub(crate) fn release(&mut self, oldest: u64) -> Vec<Batch> {
        let mut released = Vec::new();
        while self.has_left_merge(oldest) {
            released.extend(self.batches.pop_front());
        }
        released
    }

    /// Removes and returns all batches. The caller has emptied the merge and flushed the profile.
    pub(super) fn release_all(&mut self) -> Vec<Batch> {
        self.batches.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(position: u64, passes_to_merge: u32) -> Batch {
        Batch { positions: vec![(1, vec![(0, position)])], passes_to_merge, ..Batch::default() }
    }

    fn positions(batch: Vec<Batch>) -> Vec<u64> {
        batch
            .iter()
            .flat_map(|batch| &batch.positions)
            .flat_map(|(_, positions)| positions)
            .map(|position| position.1)
            .collect()
    }

    #[test]
    fn only_what_is_out_of_the_merge_is_released() {
        let mut unacknowledged = Unacknowledged::default();
        unacknowledged.add(batch(1, 0));
        unacknowledged.end_pass(10);
        // Samples from number 8 on are still in the merge.
        assert!(!unacknowledged.has_left_merge(8) && !unacknowledged.has_left_merge(10));
        unacknowledged.add(batch(2, 1));
        unacknowledged.add(Batch::default());
        unacknowledged.end_pass(12);
        assert_eq!(positions(unacknowledged.release(12)), [1]);
        assert!(!unacknowledged.has_left_merge(u64::MAX), "the second was not wholly in the merge");
        unacknowledged.end_pass(15);
        assert!(
            !unacknowledged.has_left_merge(15) && !unacknowledged.is_urgent() && !unacknowledged.is_stuck()
        );
        assert_eq!(positions(unacknowledged.release(16)), [2]);
        unacknowledged.add(batch(3, 0));
        (0..=MAX_PASSES).for_each(|_| unacknowledged.end_pass(20));
        assert!(unacknowledged.is_stuck());
        assert_eq!(positions(unacknowledged.release_all()), [3]);
    }
}
