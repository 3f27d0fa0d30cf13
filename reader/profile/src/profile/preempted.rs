//! Leaves out the call that Go's runtime injects into a goroutine to preempt it.
//!
//! The kernel delivers pending signals in the order of their numbers: the runtime's SIGURG, whose handler moves the thread to
//! the first instruction of `runtime.asyncPreempt`, comes before the SIGPROF of a CPU timer, which then finds the thread there.
//! The time was spent in the preempted function, which is the next frame. Time in any other instruction stays the runtime's.

use std::collections::{HashMap, HashSet};

use super::contents::Profile;
use super::reshape;
use super::stacks::Counts;
use super::timeline::TimedSample;

/// The injected function; the suffix names its calling convention.
const INJECTED: [&str; 2] = ["runtime.asyncPreempt", "runtime.asyncPreempt.abi0"];
/// Go's linker aligns functions at least so.
const ALIGNMENT: u64 = 16;

/// Removes innermost frames at the first instruction of the injected function, and merges stacks that become equal.
pub(super) fn fold(profile: &mut Profile, counts: &mut Counts, timed_samples: &mut Option<Vec<TimedSample>>) {
    let entries = entries(profile);
    if entries.is_empty() {
        return;
    }
    reshape::reshape(profile, counts, timed_samples, |mut frames| {
        if frames.len() > 1 && frames.last().is_some_and(|leaf| entries.contains(&leaf.location)) {
            frames.pop();
        }
        frames
    });
}

/// The locations of first instructions. Profiles store names but not where functions begin: it is the lowest sampled address of
/// the function in its binary, if that is aligned.
fn entries(profile: &Profile) -> HashSet<u32> {
    let mut lowest: HashMap<Option<u32>, (u64, u32)> = HashMap::new();
    for (number, location) in profile.locations.iter().enumerate() {
        let number = number as u32;
        let Some(function) = profile.lines_of(number).last() else { continue };
        if INJECTED.contains(&profile.names.get(function.linkage)) {
            let at = (location.address, number);
            lowest.entry(location.binary).and_modify(|lowest| *lowest = at.min(*lowest)).or_insert(at);
        }
    }
    lowest
        .values()
        .filter(|(address, _)| address.is_multiple_of(ALIGNMENT))
        .map(|&(_, number)| number)
        .collect()
}
