//! The stacks of the last seconds, added up.
//!
//! Its size is bounded: when a program makes ever new stacks, the oldest picture is given up, never the machine.

use std::collections::{HashMap, VecDeque};

use selfwind_profile::call_tree::{Stacks, Step};

/// Distinct stacks kept; then everything starts anew.
const STACKS_KEPT: usize = 1 << 18;

/// What a label is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name {
    /// A function, a program, a mark.
    pub(super) text: String,
    /// File name of its binary; empty for programs and marks.
    pub(super) module: String,
    /// It is a program: the root of its stacks, no function.
    pub(super) program: bool,
}

/// A step whose guess is kept as a flag: what is hashed.
type Key = (u32, bool);

/// Weights of stacks by second.
#[derive(Clone, Default)]
pub(super) struct Window {
    names: Vec<Name>,
    known: HashMap<Name, u32>,
    stacks: Vec<Box<[Step]>>,
    numbers: HashMap<Box<[Key]>, u32>,
    /// By second of the trace clock, ascending.
    slices: VecDeque<(u64, HashMap<u32, u64>)>,
    /// Seconds that are shown; 0 for all.
    seconds: u64,
}

impl Window {
    /// Shows the last `seconds`, or all when that is 0.
    pub(super) fn new(seconds: u64) -> Self {
        Self { seconds, ..Self::default() }
    }

    /// The number of a name.
    pub(super) fn label(&mut self, name: Name) -> u32 {
        let next = self.names.len() as u32;
        let label = *self.known.entry(name.clone()).or_insert(next);
        if label == next {
            self.names.push(name);
        }
        label
    }

    /// What a label is.
    pub(super) fn name(&self, label: u32) -> &Name {
        &self.names[label as usize]
    }

    /// Adds a stack, root first, that was taken in this second.
    pub(super) fn add(&mut self, second: u64, stack: &[Step], weight: u64) {
        let key: Box<[Key]> = stack.iter().map(|s| (s.label, s.found_by == unwind::FoundBy::Guess)).collect();
        if self.stacks.len() >= STACKS_KEPT && !self.numbers.contains_key(&key) {
            (self.stacks, self.numbers, self.slices) = Default::default();
        }
        let next = self.stacks.len() as u32;
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.stacks.push(stack.into());
        }
        // Samples of several threads are nearly, not wholly, in order: late ones count for the newest second.
        let second = if self.seconds == 0 { 0 } else { second };
        if self.slices.back().is_none_or(|(newest, _)| *newest < second) {
            self.slices.push_back((second, HashMap::new()));
        }
        if let Some((_, weights)) = self.slices.back_mut() {
            *weights.entry(number).or_default() += weight;
        }
    }

    /// Forgets what is too old at this second.
    pub(super) fn forget(&mut self, now: u64) {
        while self.seconds > 0
            && self.slices.front().is_some_and(|(second, _)| second.saturating_add(self.seconds) < now)
        {
            self.slices.pop_front();
        }
    }

    /// Weight of everything kept.
    #[cfg(test)]
    pub(super) fn weight(&self) -> u64 {
        self.slices.iter().flat_map(|(_, weights)| weights.values()).sum()
    }
}

impl Stacks for Window {
    fn labels(&self) -> usize {
        self.names.len()
    }

    fn text(&self, label: u32) -> &str {
        &self.name(label).text
    }

    fn each(&self, each: &mut dyn FnMut(&[Step], u64)) {
        let mut sums: HashMap<u32, u64> = HashMap::new();
        for (number, weight) in self.slices.iter().flat_map(|(_, weights)| weights) {
            *sums.entry(*number).or_default() += weight;
        }
        for (number, weight) in sums {
            each(&self.stacks[number as usize], weight);
        }
    }
}

/// The stacks through certain labels, from the last of them on.
pub(super) struct Zoomed<'a> {
    pub(super) window: &'a Window,
    /// Each is looked for below the one before.
    pub(super) through: &'a [u32],
}

impl Stacks for Zoomed<'_> {
    fn labels(&self) -> usize {
        self.window.labels()
    }

    fn text(&self, label: u32) -> &str {
        self.window.text(label)
    }

    fn each(&self, each: &mut dyn FnMut(&[Step], u64)) {
        self.window.each(&mut |stack, weight| {
            let mut from = 0;
            for &label in self.through {
                match stack[from..].iter().position(|step| step.label == label) {
                    Some(place) => from += place,
                    None => return,
                }
            }
            each(&stack[from..], weight);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name { text: text.into(), module: String::new(), program: false }
    }

    #[test]
    fn old_seconds_go_and_zooms_cut() {
        let mut window = Window::new(10);
        let [a, b, c] = ["a", "b", "c"].map(|text| window.label(name(text)));
        assert_eq!(window.label(name("b")), b);
        let steps = |labels: &[u32]| labels.iter().map(|&l| Step::certain(l)).collect::<Vec<_>>();
        window.add(1, &steps(&[a, b, c]), 3);
        window.add(2, &steps(&[a, c]), 4);
        window.add(1, &steps(&[a, b, c]), 1);
        assert_eq!(window.weight(), 8);
        let mut seen = Vec::new();
        Zoomed { window: &window, through: &[b] }.each(&mut |stack, weight| seen.push((stack.len(), weight)));
        assert_eq!(seen, [(2, 4)]);
        window.forget(12);
        assert_eq!(window.weight(), 5);
        window.forget(100);
        assert_eq!(window.weight(), 0);
        let mut all = Window::new(0);
        all.add(1, &[], 1);
        all.add(1000, &[], 1);
        all.forget(5000);
        assert_eq!(all.weight(), 2);
    }
}
