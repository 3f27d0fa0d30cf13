//! Call trees and weights of labelled stacks.
//!
//! Labels (functions, lines, threads) are only numbers here; the caller defines their meaning. The report, the comparison and the
//! live view all sum up weights through this file.

use std::cmp::Reverse;

use unwind::FoundBy;

use crate::word_map::WordMap;

/// The label of node 0, the root of everything.
pub const ALL: u32 = u32::MAX;

/// One element of a labelled stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The label, see [`Stacks::text`].
    pub label: u32,
    /// How its frame was found.
    pub found_by: FoundBy,
}

impl Step {
    /// An element that is certain: a heading, or a frame found through call frame information.
    pub fn certain(label: u32) -> Self {
        Self { label, found_by: FoundBy::Cfi }
    }
}

/// Labelled stacks and their weights.
pub trait Stacks {
    /// How many labels there are.
    fn labels(&self) -> usize;
    /// The text of a label.
    fn text(&self, label: u32) -> &str;
    /// Calls `each` with every stack, root first, and its weight.
    fn each(&self, each: &mut dyn FnMut(&[Step], u64));
}

/// The weights of a label.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Weight {
    /// Weight of stacks that end in it.
    pub own: u64,
    /// Weight of stacks that contain it, each counted once however often it recurs.
    pub total: u64,
    /// The part of `total` in which its frame was guessed.
    pub guessed: u64,
}

/// The weights of all labels, by number.
pub fn weights(stacks: &dyn Stacks) -> Vec<Weight> {
    let mut weights = vec![Weight::default(); stacks.labels()];
    let mut seen_in = vec![usize::MAX; weights.len()];
    let mut number = 0;
    stacks.each(&mut |stack, weight| {
        for step in stack {
            let index = step.label as usize;
            if std::mem::replace(&mut seen_in[index], number) != number {
                weights[index].total += weight;
                weights[index].guessed += if step.found_by == FoundBy::Guess { weight } else { 0 };
            }
        }
        if let Some(leaf) = stack.last() {
            weights[leaf.label as usize].own += weight;
        }
        number += 1;
    });
    weights
}

/// Which way a tree grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the roots to what they call.
    Callees,
    /// From the leaves to their callers.
    Callers,
}

/// A node of a call tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its label.
    pub label: u32,
    /// Index of the parent; node 0 is its own parent.
    pub parent: u32,
    /// Weight of stacks that end here.
    pub own: u64,
    /// Weight of stacks through here.
    pub total: u64,
    /// The part of `total` in which the frame was found by its frame pointer.
    pub frame_pointer: u64,
    /// The part of `total` in which the frame was guessed.
    pub guessed: u64,
    /// Range of its children in the tree's list of children.
    children: (u32, u32),
}

/// A call tree; node 0 is the root of everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallTree {
    /// The nodes, each after its parent.
    pub nodes: Vec<Node>,
    /// The children of all nodes.
    children: Vec<u32>,
}

impl CallTree {
    /// Builds a tree. Stacks without elements count for node 0 only. The first `fixed` elements of every stack are headings, which
    /// stay at the root in both directions.
    pub fn new(stacks: &dyn Stacks, direction: Direction, fixed: usize) -> Self {
        let mut builder =
            Builder { nodes: vec![Node::new(ALL, 0)], known: WordMap::default(), path: Vec::new() };
        stacks.each(&mut |stack, weight| match direction {
            Direction::Callees => builder.add(stack.iter(), weight),
            Direction::Callers => {
                let (headings, calls) = stack.split_at(fixed.min(stack.len()));
                builder.add(headings.iter().chain(calls.iter().rev()), weight);
            }
        });
        Self::of(builder.nodes, stacks)
    }

    /// A tree of these nodes, each after its parent, with the labels of `stacks`.
    pub fn of(nodes: Vec<Node>, stacks: &dyn Stacks) -> Self {
        let mut tree = CallTree { nodes, children: Vec::new() };
        tree.link(&ranks(stacks));
        tree
    }

    /// The node with this index.
    pub fn node(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }

    /// The children of a node, heaviest first, equal ones by text.
    pub fn children(&self, node: u32) -> &[u32] {
        let (from, until) = self.node(node).children;
        &self.children[from as usize..until as usize]
    }

    /// Lists the children of all nodes.
    fn link(&mut self, ranks: &[u32]) {
        let CallTree { nodes, children } = self;
        for index in 1..nodes.len() {
            let parent = nodes[index].parent as usize;
            nodes[parent].children.1 += 1;
        }
        let mut next = 0;
        for node in nodes.iter_mut() {
            let count = node.children.1;
            node.children = (next, next);
            next += count;
        }
        *children = vec![0; next as usize];
        for index in 1..nodes.len() {
            let parent = nodes[index].parent as usize;
            let until = &mut nodes[parent].children.1;
            children[*until as usize] = index as u32;
            *until += 1;
        }
        for Node { children: (from, until), .. } in nodes.iter() {
            children[*from as usize..*until as usize].sort_unstable_by_key(|&child| {
                let Node { label, total, .. } = nodes[child as usize];
                (Reverse(total), ranks[label as usize])
            });
        }
    }
}

/// The rank of each label by text and number.
fn ranks(stacks: &dyn Stacks) -> Vec<u32> {
    let mut order: Vec<u32> = (0..stacks.labels() as u32).collect();
    order.sort_unstable_by_key(|&label| (stacks.text(label), label));
    let mut ranks = vec![0; order.len()];
    for (rank, &label) in order.iter().enumerate() {
        ranks[label as usize] = rank as u32;
    }
    ranks
}

impl Node {
    /// A call without weight.
    pub fn new(label: u32, parent: u32) -> Self {
        Self { label, parent, own: 0, total: 0, frame_pointer: 0, guessed: 0, children: (0, 0) }
    }
}

/// A tree being built.
struct Builder {
    nodes: Vec<Node>,
    known: WordMap<(u32, u32), u32>,
    /// Labels and nodes of the last path, whose beginning the next one often shares.
    path: Vec<(u32, u32)>,
}

impl Builder {
    fn add<'a>(&mut self, path: impl Iterator<Item = &'a Step>, weight: u64) {
        self.nodes[0].total += weight;
        let mut at = 0u32;
        for (depth, step) in path.enumerate() {
            at = match self.path.get(depth) {
                Some(&(label, node)) if label == step.label => node,
                _ => {
                    let node = self.child(at, step.label);
                    self.path.truncate(depth);
                    self.path.push((step.label, node));
                    node
                }
            };
            let node = &mut self.nodes[at as usize];
            node.total += weight;
            match step.found_by {
                FoundBy::FramePointer => node.frame_pointer += weight,
                FoundBy::Guess => node.guessed += weight,
                FoundBy::Cfi | FoundBy::Region => {}
            }
        }
        self.nodes[at as usize].own += weight;
    }

    fn child(&mut self, parent: u32, label: u32) -> u32 {
        let next = self.nodes.len() as u32;
        let child = *self.known.entry((parent, label)).or_insert(next);
        if child == next {
            self.nodes.push(Node::new(label, parent));
        }
        child
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Made(Vec<(Vec<Step>, u64)>);

    impl Stacks for Made {
        fn labels(&self) -> usize {
            4
        }
        fn text(&self, label: u32) -> &str {
            ["main", "a", "b", "heading"][label as usize]
        }
        fn each(&self, each: &mut dyn FnMut(&[Step], u64)) {
            self.0.iter().for_each(|(stack, weight)| each(stack, *weight));
        }
    }

    fn made() -> Made {
        let steps = |labels: &[u32]| labels.iter().map(|&label| Step::certain(label)).collect::<Vec<_>>();
        let mut guessed = steps(&[3, 0, 2]);
        guessed[1].found_by = FoundBy::Guess;
        Made(vec![(steps(&[3, 0, 1, 1]), 5), (guessed, 2), (Vec::new(), 1)])
    }

    #[test]
    fn recursion_counts_once_and_guesses_are_kept() {
        let weights = weights(&made());
        assert_eq!(weights[1], Weight { own: 5, total: 5, guessed: 0 });
        assert_eq!(weights[0], Weight { own: 0, total: 7, guessed: 2 });
    }

    #[test]
    fn trees_add_up_and_headings_stay_on_top() {
        for (direction, first) in [(Direction::Callees, "main"), (Direction::Callers, "a")] {
            let made = made();
            let tree = CallTree::new(&made, direction, 1);
            assert_eq!((tree.nodes[0].total, tree.nodes[0].own), (8, 1));
            for (index, node) in tree.nodes.iter().enumerate() {
                let below: u64 =
                    tree.children(index as u32).iter().map(|&child| tree.node(child).total).sum();
                assert_eq!(node.total, node.own + below);
            }
            let heading = tree.node(tree.children(0)[0]);
            assert_eq!(made.text(heading.label), "heading");
            let below = tree.children(tree.children(0)[0])[0];
            assert_eq!(made.text(tree.node(below).label), first);
        }
    }
}
