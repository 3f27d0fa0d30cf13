//! Changes the frames of all stacks, and merges stacks that become equal.
//!
//! Whatever refers to a stack is renumbered here, so that no total changes.

use super::bucket::{Stack, StackFrame};
use super::contents::Profile;
use super::stacks::{Counts, Paths};
use super::timeline::TimedSample;
use crate::word_map::WordMap;

/// Gives each stack the frames that `shown` makes of its own, root first.
pub(super) fn reshape(
    profile: &mut Profile,
    counts: &mut Counts,
    timed_samples: &mut Option<Vec<TimedSample>>,
    shown: impl Fn(Vec<StackFrame>) -> Vec<StackFrame>,
) {
    let mut paths = Paths::default();
    let mut numbers: WordMap<(u32, u8), u32> = WordMap::default();
    let mut stacks = Vec::new();
    let old = std::mem::take(&mut profile.stacks);
    let mut path: Vec<StackFrame> = Vec::new();
    let new_numbers: Vec<u32> = old
        .iter()
        .map(|stack| {
            let before = std::mem::take(&mut path);
            path = shown(profile.frames_from_root(stack));
            let shared = path.iter().zip(&before).take_while(|(a, b)| a == b).count();
            let innermost = paths.push(&path, shared);
            let next = stacks.len() as u32;
            let number = *numbers.entry((innermost, stack.end)).or_insert(next);
            if number == next {
                stacks.push(Stack { innermost, end: stack.end });
            }
            number
        })
        .collect();
    (profile.paths, profile.stacks) = (paths, stacks);
    counts.renumber(&new_numbers);
    profile.renumber_pairs(&new_numbers);
    for timed in timed_samples.iter_mut().flatten() {
        timed.stack = new_numbers[timed.stack as usize];
    }
}
