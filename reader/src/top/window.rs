//! Sums up the stacks of the last seconds.
//!
//! Memory is bounded: if a program has ever new stacks, the window is reset.

use std::collections::{HashMap, VecDeque};

use selfwind_profile::call_tree::{Stacks, Step};
use selfwind_profile::events::Events;
use shm_format::BlockId;

/// Maximum number of distinct stacks; beyond it the window is reset.
const STACKS_KEPT: usize = 1 << 18;

/// The name of a label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Name {
    /// A function, a program, or a marker frame.
    pub(super) text: String,
    /// File name of its binary; empty for programs and marker frames.
    pub(super) module: String,
    /// It is a program, the root of its stacks, and not a function.
    pub(super) program: bool,
}

/// A step in hashable form: label, and whether it was guessed.
type Key = (u32, bool);

/// An allocated block or a mapping, as `LiveBlocks` and `LiveMappings` name it.
pub(super) type Block = (u32, u64);

/// How much of it is in use.
#[derive(Clone, Copy)]
pub(super) enum Left {
    /// So many blocks with this id: allocations of one stack and size may share it.
    Blocks(u64),
    /// So much of a mapping.
    Bytes(u64),
}

/// A block in use: its stack, and its weights by event.
#[derive(Clone)]
struct LiveBlock {
    stack: u32,
    /// How many there were at the last check; 0 for one that is newer, of which most programs have freed most by then.
    count: u64,
    /// Objects, bytes.
    weights: Vec<(u8, u64)>,
}

/// Weights by event and stack.
type Weights = HashMap<(u8, u32), u64>;

/// Weights of stacks, by second; those of blocks for as long as they are in use.
#[derive(Clone, Default)]
pub(super) struct Window {
    names: Vec<Name>,
    known: HashMap<Name, u32>,
    stacks: Vec<Box<[Step]>>,
    numbers: HashMap<Box<[Key]>, u32>,
    /// By second of the trace clock, ascending.
    slices: VecDeque<(u64, Weights)>,
    /// Blocks that were in use at the last check, and newer ones.
    blocks: HashMap<Block, LiveBlock>,
    /// Length of the window in seconds; 0 for everything.
    seconds: u64,
}

impl Window {
    /// A window of `seconds`; 0 for everything.
    pub(super) fn new(seconds: u64) -> Self {
        Self { seconds, ..Self::default() }
    }

    /// The label of a name.
    pub(super) fn label(&mut self, name: Name) -> u32 {
        let next = self.names.len() as u32;
        let label = *self.known.entry(name.clone()).or_insert(next);
        if label == next {
            self.names.push(name);
        }
        label
    }

    /// The name of a label.
    pub(super) fn name(&self, label: u32) -> &Name {
        &self.names[label as usize]
    }

    pub(super) fn labels(&self) -> usize {
        self.names.len()
    }

    pub(super) fn text(&self, label: u32) -> &str {
        &self.name(label).text
    }

    /// The number of a stack, root first.
    fn number(&mut self, stack: &[Step]) -> u32 {
        let key: Box<[Key]> = stack.iter().map(|s| (s.label, s.found_by == unwind::FoundBy::Guess)).collect();
        if self.stacks.len() >= STACKS_KEPT && !self.numbers.contains_key(&key) {
            (self.stacks, self.numbers, self.slices, self.blocks) = Default::default();
        }
        let next = self.stacks.len() as u32;
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.stacks.push(stack.into());
        }
        number
    }

    /// Adds the weight of a stack, root first, for an event in this second.
    pub(super) fn add(&mut self, second: u64, stack: &[Step], event: u8, weight: u64) {
        let number = self.number(stack);
        // Samples of several threads are only roughly in order; late ones count for the newest second.
        let second = if self.seconds == 0 { 0 } else { second };
        if self.slices.back().is_none_or(|(newest, _)| *newest < second) {
            self.slices.push_back((second, HashMap::new()));
        }
        if let Some((_, weights)) = self.slices.back_mut() {
            *weights.entry((event, number)).or_default() += weight;
        }
    }

    /// Adds a block allocated by this stack, with its weight for an event, which counts once [`keep`](Self::keep) is told of it.
    /// Later blocks may have the same id.
    pub(super) fn hold(&mut self, block: Block, stack: &[Step], event: u8, weight: u64) {
        let stack = self.number(stack);
        let new = || LiveBlock { stack, count: 0, weights: Vec::new() };
        self.blocks.entry(block).or_insert_with(new).weights.push((event, weight));
    }

    /// Keeps the blocks still in use, as decided by `left`.
    pub(super) fn keep(&mut self, left: impl Fn(&Block) -> Option<Left>) {
        self.blocks.retain(|block, held| {
            let left = left(block);
            held.count = match left {
                Some(Left::Blocks(blocks)) => blocks,
                Some(Left::Bytes(_)) => 1,
                None => 0,
            };
            if let (Some(Left::Bytes(left)), [_, (_, bytes)]) = (left, &mut held.weights[..]) {
                *bytes = left.min(*bytes);
            }
            left.is_some() || BlockId(block.1).is_shared()
        });
    }

    /// Forgets everything that has left the window at this second.
    pub(super) fn forget(&mut self, now: u64) {
        while self.seconds > 0
            && self.slices.front().is_some_and(|(second, _)| second.saturating_add(self.seconds) < now)
        {
            self.slices.pop_front();
        }
    }

    /// Calls `each` with every stack and its weight for an event.
    fn each(&self, event: u8, each: &mut dyn FnMut(&[Step], u64)) {
        let mut sums: HashMap<u32, u64> = HashMap::new();
        for ((at, number), weight) in self.slices.iter().flat_map(|(_, weights)| weights) {
            if *at == event {
                *sums.entry(*number).or_default() += weight;
            }
        }
        for LiveBlock { stack, count, weights } in self.blocks.values().filter(|held| held.count > 0) {
            for (_, weight) in weights.iter().filter(|(at, _)| Events::in_use(*at) == event) {
                *sums.entry(*stack).or_default() += weight * count;
            }
        }
        for (number, weight) in sums {
            each(&self.stacks[number as usize], weight);
        }
    }
}

/// The stacks of an event that contain certain labels, from the last of those on.
pub(super) struct Zoomed<'a> {
    pub(super) window: &'a Window,
    /// Index of the event.
    pub(super) event: u8,
    /// Each must occur below the one before.
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
        self.window.each(self.event, &mut |stack, weight| {
            let mut from = 0;
            for &label in self.through {
                match stack[from..].iter().position(|step| step.label == label) {
                    Some(index) => from += index,
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
    use shm_format::AllocationNonce;

    fn weight(window: &Window, event: u8) -> u64 {
        let mut sum = 0;
        Zoomed { window, event, through: &[] }.each(&mut |_, weight| sum += weight);
        sum
    }

    fn name(text: &str) -> Name {
        Name { text: text.into(), module: String::new(), program: false }
    }

    #[test]
    fn old_seconds_go_and_zooms_cut() {
        let mut window = Window::new(10);
        let [a, b, c] = ["a", "b", "c"].map(|text| window.label(name(text)));
        assert_eq!(window.label(name("b")), b);
        let steps = |labels: &[u32]| labels.iter().map(|&l| Step::certain(l)).collect::<Vec<_>>();
        window.add(1, &steps(&[a, b, c]), 0, 3);
        window.add(2, &steps(&[a, c]), 0, 4);
        window.add(1, &steps(&[a, b, c]), 0, 1);
        window.add(1, &steps(&[a, b, c]), 1, 100);
        assert_eq!((weight(&window, 0), weight(&window, 1)), (8, 100));
        let mut seen = Vec::new();
        Zoomed { window: &window, event: 0, through: &[b] }
            .each(&mut |stack, weight| seen.push((stack.len(), weight)));
        assert_eq!(seen, [(2, 4)]);
        window.forget(12);
        assert_eq!(weight(&window, 0), 5);
        window.forget(100);
        assert_eq!(weight(&window, 0), 0);
        let mut all = Window::new(0);
        all.add(1, &[], 0, 1);
        all.add(1000, &[], 0, 1);
        all.forget(5000);
        assert_eq!(weight(&all, 0), 2);
    }

    #[test]
    fn blocks_count_until_they_are_freed() {
        let mut window = Window::new(10);
        let steps = [Step::certain(window.label(name("a")))];
        for serial in 1..=3 {
            window.hold((1, serial), &steps, 0, 1);
            window.hold((1, serial), &steps, 1, 100 * serial);
        }
        window.forget(1000);
        assert_eq!([0, 1, 2, 3].map(|event| weight(&window, event)), [0; 4], "they may have been freed");
        window.keep(|_| Some(Left::Blocks(1)));
        assert_eq!([0, 1, 2, 3].map(|event| weight(&window, event)), [0, 0, 3, 600]);
        window.keep(|block| (block.1 != 2).then_some(Left::Blocks(1)));
        assert_eq!([2, 3].map(|event| weight(&window, event)), [2, 400]);
        window.keep(|block| Some(if block.1 == 3 { Left::Bytes(50) } else { Left::Blocks(1) }));
        assert_eq!([2, 3].map(|event| weight(&window, event)), [2, 150]);
    }

    /// A block was freed before others that have its id were allocated.
    #[test]
    fn blocks_with_one_id_count_each() {
        let mut window = Window::new(10);
        let steps = [Step::certain(window.label(name("a")))];
        let shared = (1, AllocationNonce::shared(100, 7).id(3).0);
        window.hold(shared, &steps, 0, 1);
        window.hold(shared, &steps, 1, 100);
        window.keep(|_| None);
        assert_eq!([2, 3].map(|event| weight(&window, event)), [0, 0]);
        window.keep(|_| Some(Left::Blocks(3)));
        assert_eq!([2, 3].map(|event| weight(&window, event)), [3, 300]);
        window.hold((1, 7), &steps, 0, 1);
        window.keep(|_| None);
        assert_eq!(window.blocks.len(), 1, "an id that is not given any more stays");
    }
}
