//! What was taken from rings and is not yet safe from the recorder's own death.
//!
//! A sample leaves its ring, waits for its turn in the merge, and goes out with a block of the profile. Only then is the
//! region told that it was taken. A recorder that is killed in between leaves all of it to whoever records the process
//! next. A stack that waits for the kernel's half longer than that keeps its chunk back (`Process::acknowledge`). What must
//! never happen here: something is acknowledged that the profile does not have.

use std::collections::VecDeque;

use crate::drain::process::{Places, Process};

/// Passes after which what came into the merge must have left it.
const LONGEST: u32 = 32;
/// Passes until the end of a process is in the profile.
const END: u32 = 2;

/// What passes took, oldest first.
#[derive(Default)]
pub(crate) struct Held {
    passes: VecDeque<Taken>,
}

/// What one pass took.
#[derive(Default)]
pub(crate) struct Taken {
    /// By number of the process.
    pub(crate) places: Vec<(u32, Places)>,
    /// Processes that ended.
    pub(crate) gone: Vec<Process>,
    /// There are chunks that writers wait for.
    pub(super) urgent: bool,
    /// Passes until the last sample of it is in the merge.
    pub(crate) patience: u32,
    /// Samples that had come into the merge by then.
    arrivals: Option<u64>,
    age: u32,
}

impl Held {
    /// Notes what a pass took.
    pub(crate) fn take(&mut self, mut taken: Taken) {
        if !taken.gone.is_empty() {
            taken.urgent = true;
            taken.patience = taken.patience.max(END);
        }
        if !taken.places.is_empty() || !taken.gone.is_empty() {
            self.passes.push_back(taken);
        }
    }

    /// A pass is over; so many samples have come into the merge.
    pub(super) fn end_pass(&mut self, arrivals: u64) {
        for taken in &mut self.passes {
            if taken.age == taken.patience {
                taken.arrivals = Some(arrivals);
            }
            taken.age += 1;
        }
    }

    /// True if writers wait for chunks.
    pub(super) fn is_urgent(&self) -> bool {
        self.passes.iter().any(|taken| taken.urgent)
    }

    /// True if something has waited so long that its samples must be of another time than their clock says.
    pub(super) fn is_stuck(&self) -> bool {
        self.passes.front().is_some_and(|taken| taken.age > LONGEST)
    }

    /// True if something is out of the merge, whose oldest sample is number `oldest`.
    pub(super) fn is_due(&self, oldest: u64) -> bool {
        self.passes.front().is_some_and(|taken| taken.arrivals.is_some_and(|arrivals| arrivals < oldest))
    }

    /// Takes what is out of the merge, and safe now.
    pub(crate) fn release(&mut self, oldest: u64) -> Vec<Taken> {
        let mut released = Vec::new();
        while self.is_due(oldest) {
            released.extend(self.passes.pop_front());
        }
        released
    }

    /// Takes everything: the merge is empty, and what was in it is safe.
    pub(super) fn release_all(&mut self) -> Vec<Taken> {
        self.passes.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(place: u64, patience: u32) -> Taken {
        Taken { places: vec![(1, vec![(0, place)])], patience, ..Taken::default() }
    }

    fn places(taken: Vec<Taken>) -> Vec<u64> {
        taken
            .iter()
            .flat_map(|taken| &taken.places)
            .flat_map(|(_, places)| places)
            .map(|place| place.1)
            .collect()
    }

    #[test]
    fn only_what_is_out_of_the_merge_is_released() {
        let mut held = Held::default();
        held.take(taken(1, 0));
        held.end_pass(10);
        // Samples 8 and on wait.
        assert!(!held.is_due(8) && !held.is_due(10));
        held.take(taken(2, 1));
        held.take(Taken::default());
        held.end_pass(12);
        assert_eq!(places(held.release(12)), [1]);
        assert!(!held.is_due(u64::MAX), "the second was not wholly in the merge");
        held.end_pass(15);
        assert!(!held.is_due(15) && !held.is_urgent() && !held.is_stuck());
        assert_eq!(places(held.release(16)), [2]);
        held.take(taken(3, 0));
        (0..=LONGEST).for_each(|_| held.end_pass(20));
        assert!(held.is_stuck());
        assert_eq!(places(held.release_all()), [3]);
    }
}
