//! Stacks kept once, counted while samples stream past.
//!
//! A program's stacks share most of their outer frames, so they are kept as paths of a tree: a stack costs
//! what it does not share. A stack that was met before is known by its digest alone, without a walk.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};

use crate::word_map::{WordMap, folded};

/// Stands for the node above the outermost one.
pub(super) const ROOT: u32 = u32::MAX >> 1;
/// Set in the link of a node that lies in the kernel. The same word may be an address there and a frame elsewhere.
const KERNEL: u32 = 1 << 31;

/// Items on top of each other: every node is one on top of the path to its parent.
#[derive(Debug)]
pub(super) struct Paths<T> {
    nodes: Vec<(u32, T)>,
    numbers: WordMap<(u32, T), u32>,
}

impl<T> Default for Paths<T> {
    fn default() -> Self {
        Paths { nodes: Vec::new(), numbers: WordMap::default() }
    }
}

impl<T: Copy + Eq + Hash> Paths<T> {
    /// The number of `item` on top of node `below`, greater than `below`.
    pub(super) fn push(&mut self, below: u32, item: T) -> u32 {
        let next = self.nodes.len() as u32;
        let number = *self.numbers.entry((below, item)).or_insert(next);
        if number == next {
            self.nodes.push((below, item));
        }
        number
    }

    /// Ends the pushing: what is left takes less room.
    pub(super) fn seal(&mut self) {
        self.numbers = WordMap::default();
        self.nodes.shrink_to_fit();
    }

    /// How many nodes there are.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The node below this one and the item on top.
    pub(super) fn node(&self, number: u32) -> (u32, T) {
        self.nodes[number as usize]
    }

    /// The items from this node down to the root.
    pub(super) fn down(&self, from: u32) -> impl Iterator<Item = T> + '_ {
        let mut at = from;
        std::iter::from_fn(move || {
            let &(below, item) = self.nodes.get(at as usize)?;
            at = below;
            Some(item)
        })
    }
}

/// A raw stack: two samples share one if process, mapping epoch, addresses and end are the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawStack<'a> {
    /// Place in the profile's processes.
    pub(super) process: u32,
    /// Epoch of the process's mapping history.
    pub(super) epoch: u32,
    /// Why the walk ended.
    pub(super) end: u8,
    /// Addresses in the kernel, leaf first.
    pub(super) kernel: &'a [u64],
    /// Frame words, leaf first.
    pub(super) frames: &'a [u64],
}

/// What lies at a node of a raw stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RawItem {
    /// Below all frames: the process and the epoch in which they were met.
    Place { process: u32, epoch: u32 },
    /// A frame word.
    Frame(u64),
    /// An address in the kernel.
    Kernel(u64),
}

/// All raw stacks that were met. Names come later, once per node.
#[derive(Debug, Default)]
pub(super) struct RawStacks {
    numbers: HashMap<Digest, u32, BuildHasherDefault<Ready>>,
    secret: Secret,
    paths: Paths<u64>,
    /// The innermost node and the end of each stack.
    pub(super) list: Vec<(u32, u8)>,
}

impl RawStacks {
    /// The number of a stack.
    pub(super) fn number(&mut self, stack: &RawStack<'_>) -> u32 {
        let next = self.list.len() as u32;
        let number = *self.numbers.entry(self.secret.digest(stack)).or_insert(next);
        if number == next {
            let place = u64::from(stack.process) << 32 | u64::from(stack.epoch);
            let mut at = self.paths.push(ROOT, place);
            for &word in stack.frames.iter().rev() {
                at = self.paths.push(at, word);
            }
            for &address in stack.kernel.iter().rev() {
                at = self.paths.push(at | KERNEL, address);
            }
            self.list.push((at, stack.end));
        }
        number
    }

    /// Ends the counting.
    pub(super) fn seal(&mut self) {
        self.numbers = HashMap::default();
        self.paths.seal();
    }

    /// How many nodes there are.
    pub(super) fn nodes(&self) -> usize {
        self.paths.len()
    }

    /// The node below this one, and what lies at it.
    pub(super) fn node(&self, number: u32) -> (u32, RawItem) {
        match self.paths.node(number) {
            (ROOT, place) => (ROOT, RawItem::Place { process: (place >> 32) as u32, epoch: place as u32 }),
            (below, address) if below & KERNEL != 0 => (below & !KERNEL, RawItem::Kernel(address)),
            (below, word) => (below, RawItem::Frame(word)),
        }
    }
}

/// 128 bits that stand for a stack. That two stacks of a profile have the same ones is less likely than a
/// broken memory chip, and cannot be arranged, as they depend on a secret of this run.
type Digest = (u64, u64);

/// What digests depend on.
#[derive(Debug, Clone, Copy)]
struct Secret([u64; 4]);

impl Default for Secret {
    fn default() -> Self {
        let random = RandomState::new();
        Secret([0, 1, 2, 3].map(|number: u64| random.hash_one(number) | 1))
    }
}

impl Secret {
    fn digest(&self, stack: &RawStack<'_>) -> Digest {
        let Secret([mut a, mut b, left, right]) = *self;
        let mut add = |word: u64| {
            a = folded(a ^ word, left);
            b = folded(b.rotate_left(23) ^ word, right);
        };
        add(u64::from(stack.process) << 32 | u64::from(stack.epoch));
        add(u64::from(stack.end) | (stack.kernel.len() as u64) << 8);
        stack.kernel.iter().chain(stack.frames).for_each(|&word| add(word));
        (a, b)
    }
}

/// The hash of what is a hash already.
#[derive(Debug, Default, Clone, Copy)]
struct Ready(u64);

impl Hasher for Ready {
    fn write(&mut self, _: &[u8]) {
        unreachable!("digests are words");
    }

    fn write_u64(&mut self, word: u64) {
        self.0 ^= word;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack<'a>(kernel: &'a [u64], frames: &'a [u64]) -> RawStack<'a> {
        RawStack { process: 1, epoch: 2, end: 0, kernel, frames }
    }

    #[test]
    fn equal_stacks_are_one_and_paths_are_shared() {
        let mut raw = RawStacks::default();
        let deep = raw.number(&stack(&[], &[3, 2, 1]));
        assert_eq!(raw.number(&stack(&[], &[3, 2, 1])), deep);
        assert_ne!(raw.number(&stack(&[], &[2, 1])), deep);
        assert_eq!(raw.nodes(), 4, "a place and three frames");
        assert_ne!(raw.number(&RawStack { end: 3, ..stack(&[], &[3, 2, 1]) }), deep);
        assert_eq!(raw.nodes(), 4);
        // The same word in the kernel, and above or below the border, is something else.
        assert_ne!(raw.number(&stack(&[3], &[2, 1])), deep);
        assert_ne!(raw.number(&stack(&[3, 2], &[1])), deep);
        assert_eq!(raw.nodes(), 7);
        let (below, item) = raw.node(6);
        assert_eq!((below, item), (5, RawItem::Kernel(3)));
        assert_eq!(raw.node(0), (ROOT, RawItem::Place { process: 1, epoch: 2 }));
    }
}
