//! The heavy part of a selection's call tree, built from its root. Nodes too light to be shown are added to their parent and never
//! built: if stacks rarely repeat, nearly all nodes are.
//!
//! A node of the tree is a set of positions in the paths of the selected stacks. Growing it moves all of them one element
//! on and groups them by label.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use unwind::FoundBy;

use super::{Chosen, Growth, Selection, Unit, found_by};
use crate::call_tree::{ALL, CallTree, Direction, Node, Step};
use crate::profile::{StackFrame, Trail};

const NONE: u32 = u32::MAX;

/// The pseudo node below the root of a stack with this end; not a number of a node.
fn below_root(end: u8) -> u32 {
    NONE - u32::from(end)
}

/// A position in a path.
#[derive(Debug, Clone, Copy)]
struct Position {
    /// The node of the paths, or [`below_root`].
    at: u32,
    /// Number of that node's functions already passed.
    passed: u32,
    weight: u64,
}

/// The paths of some stacks: each node is followed by the nodes above it.
#[derive(Default)]
struct Paths {
    frames: Vec<StackFrame>,
    /// For calls: the position after all nodes above it. For callers: the node below.
    links: Vec<u32>,
    /// For calls: weight of all stacks through this node. For callers: of those that end in it.
    weights: Vec<u64>,
    /// The pseudo nodes below stacks without frames, with their weights.
    bare: Vec<(u32, u64)>,
}

impl Paths {
    fn new(selection: &Selection<'_>, stacks: &[Chosen], direction: Direction) -> Self {
        let mut paths = Paths::default();
        let mut trail = Trail::default();
        // From the root to the last stack, with the pseudo node below it.
        let mut open: Vec<u32> = Vec::new();
        let mut root = NONE;
        for chosen in stacks {
            let stack = &selection.profile.stacks[chosen.stack as usize];
            if std::mem::replace(&mut root, below_root(stack.end)) != below_root(stack.end) {
                trail = Trail::default();
            }
            let (shared, frames) = selection.profile.follow(stack, &mut trail);
            paths.close(&open[shared..], direction);
            open.truncate(shared);
            for frame in frames {
                paths.links.push(open.last().copied().unwrap_or(root));
                open.push(paths.frames.len() as u32);
                paths.frames.push(frame);
                paths.weights.push(0);
            }
            match open.last() {
                Some(&top) => paths.weights[top as usize] += chosen.weight,
                None => paths.bare.push((root, chosen.weight)),
            }
        }
        paths.close(&open, direction);
        paths
    }

    /// Completes these nodes, each of which is above the one before: nothing follows above them.
    fn close(&mut self, nodes: &[u32], direction: Direction) {
        if direction == Direction::Callers {
            return;
        }
        let end = self.frames.len() as u32;
        for &node in nodes.iter().rev() {
            let below = std::mem::replace(&mut self.links[node as usize], end);
            let weight = self.weights[node as usize];
            if let Some(sum) = self.weights.get_mut(below as usize) {
                *sum += weight;
            }
        }
    }

    /// The positions at which all stacks begin.
    fn start(&self, direction: Direction) -> Vec<Position> {
        let position = |at: u32| Position { at, passed: 0, weight: self.weights[at as usize] };
        let all = self.frames.len() as u32;
        match direction {
            Direction::Callers => {
                let bare = self.bare.iter().map(|&(at, weight)| Position { at, passed: 0, weight });
                (0..all).map(position).filter(|position| position.weight > 0).chain(bare).collect()
            }
            Direction::Callees => {
                let next = |&at: &u32| Some(self.links[at as usize]).filter(|&next| next < all);
                std::iter::successors((all > 0).then_some(0), next).map(position).collect()
            }
        }
    }
}

/// A tree being built from the paths of one group of stacks.
struct Grower<'s, 'p> {
    selection: &'s Selection<'p>,
    direction: Direction,
    paths: Paths,
    nodes: &'s mut Vec<Node>,
    /// Index in `children` of each label seen in the node being grown.
    child_of: &'s mut [u32],
    children: Vec<Child>,
}

/// Passes positions to its second argument.
type Each<'a> = dyn Fn(&Grower<'_, '_>, &mut dyn FnMut(Position)) -> u64 + 'a;

/// A child of the node being grown: the positions that follow that node with one label.
struct Child {
    label: u32,
    total: u64,
    frame_pointer: u64,
    guessed: u64,
    /// Its node; `NONE` unless it is heavy enough to get one.
    node: u32,
    positions: Vec<Position>,
}

impl Child {
    fn new(label: u32) -> Self {
        Child { label, total: 0, frame_pointer: 0, guessed: 0, node: NONE, positions: Vec::new() }
    }

    fn add(&mut self, found_by: FoundBy, weight: u64) {
        self.total += weight;
        match found_by {
            FoundBy::FramePointer => self.frame_pointer += weight,
            FoundBy::Guess => self.guessed += weight,
            FoundBy::Cfi | FoundBy::Region => {}
        }
    }
}

impl Grower<'_, '_> {
    /// The label that marks stacks with this end, if it is their last element.
    fn mark(&self, root: u32) -> Option<u32> {
        self.selection.marks.get(&u8::try_from(NONE - root).ok()?).copied()
    }

    /// None: only the end of a complete stack follows.
    fn step(&self, position: Position) -> Option<Step> {
        let Some(&frame) = self.paths.frames.get(position.at as usize) else {
            return self.mark(position.at).map(Step::certain);
        };
        let lines = &self.selection.profile.locations[frame.location as usize].lines;
        let line = match self.direction {
            Direction::Callees => lines.end - 1 - position.passed,
            Direction::Callers => lines.start + position.passed,
        };
        Some(Step { label: self.selection.of_line[line as usize], found_by: found_by(frame) })
    }

    /// Calls `visit` with what follows a position, and returns the weight of stacks that end there.
    fn next(&self, from: Position, visit: &mut dyn FnMut(Position)) -> u64 {
        let Position { at, passed, weight } = from;
        let Some(&frame) = self.paths.frames.get(at as usize) else { return weight };
        if passed + 1 < self.selection.profile.locations[frame.location as usize].lines.len() as u32 {
            visit(Position { at, passed: passed + 1, weight });
            return 0;
        }
        let link = self.paths.links[at as usize];
        match self.direction {
            Direction::Callers if link as usize >= self.paths.frames.len() && self.mark(link).is_none() => {
                weight
            }
            Direction::Callers => {
                visit(Position { at: link, passed: 0, weight });
                0
            }
            Direction::Callees => {
                let (mut on_top, mut left) = (at + 1, weight);
                while on_top < link {
                    let weight = self.paths.weights[on_top as usize];
                    visit(Position { at: on_top, passed: 0, weight });
                    left -= weight;
                    on_top = self.paths.links[on_top as usize];
                }
                left
            }
        }
    }

    /// Creates the children of `parent` that weigh at least `least`. `each` calls its second argument with the positions
    /// that follow `parent`, ascending, and returns the weight of stacks that end in it.
    fn expand(&mut self, parent: u32, least: u64, each: &Each<'_>) -> Vec<Grown> {
        let mut children = std::mem::take(&mut self.children);
        let child_of = std::mem::take(&mut self.child_of);
        let own = each(self, &mut |position| {
            let Some(Step { label, found_by }) = self.step(position) else { return };
            let known = &mut child_of[label as usize];
            if *known == NONE {
                *known = children.len() as u32;
                children.push(Child::new(label));
            }
            children[*known as usize].add(found_by, position.weight);
        });
        self.nodes[parent as usize].own += own;
        for child in children.iter_mut().filter(|child| child.total >= least) {
            child.node = self.nodes.len() as u32;
            let &mut Child { label, total, frame_pointer, guessed, .. } = child;
            let mut node = Node::new(label, parent);
            (node.total, node.frame_pointer, node.guessed) = (total, frame_pointer, guessed);
            self.nodes.push(node);
        }
        each(self, &mut |position| {
            let Some(Step { label, .. }) = self.step(position) else { return };
            let child = &mut children[child_of[label as usize] as usize];
            if child.node == NONE {
                return;
            }
            match child.positions.last_mut() {
                // Stacks with the same callers are merged from here on.
                Some(last) if (last.at, last.passed) == (position.at, position.passed) => {
                    last.weight += position.weight;
                }
                _ => child.positions.push(position),
            }
        });
        children.iter().for_each(|child| child_of[child.label as usize] = NONE);
        let heavy = children.drain(..).filter(|child| child.node != NONE);
        let grown =
            heavy.map(|Child { total, node, positions, .. }| Grown { total, node, positions }).collect();
        (self.children, self.child_of) = (children, child_of);
        grown
    }

    fn grow(mut self, root: u32, growth: Growth) {
        let bare = self.paths.bare.iter();
        let is_end = |at| self.direction == Direction::Callees || self.mark(at).is_none();
        self.nodes[root as usize].own +=
            bare.filter(|&&(at, _)| is_end(at)).map(|(_, weight)| weight).sum::<u64>();
        let (least, most) = match growth {
            Growth::Whole => (0, usize::MAX),
            Growth::AtLeast(least) => (least, usize::MAX),
            Growth::Heaviest(most) => (0, most),
        };
        let start = self.paths.start(self.direction);
        let first = self.expand(root, least, &|_, visit| {
            start.iter().for_each(|&position| visit(position));
            0
        });
        drop(start);
        let mut pending = BinaryHeap::from(first);
        for _ in 0..most {
            let Some(Grown { node, positions, .. }) = pending.pop() else { break };
            pending.extend(self.expand(node, least, &|grower, visit| {
                positions.iter().map(|&position| grower.next(position, visit)).sum()
            }));
        }
    }
}

/// A node without its children; ordered by weight.
#[derive(Debug)]
struct Grown {
    total: u64,
    node: u32,
    /// The positions of its stacks, ascending.
    positions: Vec<Position>,
}

impl Grown {
    fn rank(&self) -> (u64, Reverse<u32>) {
        (self.total, Reverse(self.node))
    }
}

impl PartialEq for Grown {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Grown {}

impl PartialOrd for Grown {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Grown {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl Selection<'_> {
    /// The call tree, as far as requested. Its nodes have the weights that they have in the complete tree.
    pub fn tree(&self, direction: Direction, growth: Growth) -> CallTree {
        // There are few modules, and trimmed stacks do not begin where their paths do.
        let is_cut = self.chosen.iter().any(|chosen| chosen.skip > 0);
        if growth == Growth::Whole || self.unit == Unit::Module || is_cut {
            return CallTree::new(self, direction, self.headings());
        }
        let mut nodes = vec![Node::new(ALL, 0)];
        let mut child_of = vec![NONE; self.labels.len()];
        let end = |chosen: &Chosen| self.profile.stacks[chosen.stack as usize].end;
        // Stacks with another end are above another mark.
        let apart = |a: &Chosen, b: &Chosen| direction == Direction::Callees && end(a) != end(b);
        for stacks in self.chosen.chunk_by(|a, b| a.heading == b.heading && !apart(a, b)) {
            let weight: u64 = stacks.iter().map(|chosen| chosen.weight).sum();
            let mut on_top = |of: u32, label: u32| {
                let last = nodes.iter().rposition(|node| node.parent == of && node.label == label);
                let node = last.filter(|&node| node > 0).unwrap_or(nodes.len());
                if node == nodes.len() {
                    nodes.push(Node::new(label, of));
                }
                nodes[node].total += weight;
                node as u32
            };
            let mut root = stacks[0].heading.map_or(0, |heading| on_top(0, heading));
            if let (Some(&mark), Direction::Callees) = (self.marks.get(&end(&stacks[0])), direction) {
                root = on_top(root, mark);
            }
            nodes[0].total += weight;
            let paths = Paths::new(self, stacks, direction);
            let children = Vec::new();
            let (nodes, child_of) = (&mut nodes, &mut child_of);
            Grower { selection: self, direction, paths, nodes, child_of, children }.grow(root, growth);
        }
        CallTree::of(nodes, self)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use unwind::{End, Frame};

    use selfwind_tests::random::Random;

    use super::*;
    use crate::call_tree::Stacks;
    use crate::profile::{Profile, of_events};
    use crate::profile_file::{Event, GeneratedCode, GeneratedFunction, ProcessInfo, Sample};
    use crate::selection::{Filters, Heading};
    use crate::symbolize::SymbolSources;

    /// Two programs whose threads call a few functions in all orders; some stacks end early, some are empty.
    fn profile() -> Profile {
        let mut events = Vec::new();
        for id in 0..3 {
            let argv = vec![if id == 2 { "b" } else { "a" }.into()];
            events.push(Event::Process(ProcessInfo { id, argv, ..ProcessInfo::default() }));
            let function = |n: u64| GeneratedFunction {
                since_ns: 0,
                start: 0x1000 * (n + 1),
                len: 0x1000,
                name: format!("f{}", n % 4),
            };
            let functions = (0..6).map(function).collect();
            let source = "/tmp/map".into();
            events.push(Event::Generated(GeneratedCode { process: id, source, functions }));
        }
        let mut random = Random::new(0x2545_f491_4f6c_dd1d);
        let mut below = |limit| random.below(limit) as u64;
        for _ in 0..3000 {
            let found = [FoundBy::Cfi, FoundBy::Cfi, FoundBy::FramePointer, FoundBy::Guess];
            let mut frame = |n| {
                Frame::new(0x1000 * (1 + below(6)) + 4 * below(2), found[below(4) as usize], n == 0).bits()
            };
            let frames = (0..7).map(&mut frame).collect::<Vec<_>>();
            let depth = below(8) as usize;
            events.push(Event::Sample(Sample {
                process: below(3) as u32,
                tid: below(2) as u32,
                ns: 1,
                weight: 1 + below(3) as u32,
                end: [End::Root, End::Root, End::NoCfi][below(3) as usize] as u8,
                frames: frames[..depth].to_vec(),
                ..Sample::default()
            }));
        }
        of_events(events, &SymbolSources::default())
    }

    /// The weight of each path of labels.
    fn weights(selection: &Selection<'_>, tree: &CallTree) -> BTreeMap<Vec<u32>, [u64; 4]> {
        let mut paths: Vec<Vec<u32>> = vec![Vec::new()];
        let mut weights = BTreeMap::new();
        for (index, node) in tree.nodes.iter().enumerate() {
            if index > 0 {
                let mut path = paths[node.parent as usize].clone();
                path.push(node.label);
                paths.push(path);
            }
            assert!(node.label == ALL || (node.label as usize) < selection.labels());
            let Node { own, total, frame_pointer, guessed, .. } = *node;
            let twice = weights.insert(paths[index].clone(), [own, total, frame_pointer, guessed]);
            assert_eq!(twice, None, "two nodes of a label below one");
        }
        weights
    }

    #[test]
    fn what_is_there_weighs_what_it_weighs_in_the_whole_tree() {
        let profile = profile();
        for heading in [Heading::None, Heading::Programs, Heading::Processes, Heading::Threads] {
            let selection = Selection::new(&profile, Unit::Function, heading, &Filters::default());
            for direction in [Direction::Callees, Direction::Callers] {
                let whole = weights(&selection, &selection.tree(direction, Growth::Whole));
                assert!(whole.len() > 1000, "{}", whole.len());
                for least in [1, 2, 20, 500] {
                    let mut grown = weights(&selection, &selection.tree(direction, Growth::AtLeast(least)));
                    let mut heavy = whole.clone();
                    heavy.retain(|_, &mut [_, total, ..]| total >= least);
                    // Headings and marks are always present.
                    grown.retain(|path, &mut [_, total, ..]| total >= least || path.len() > 2);
                    assert_eq!(grown, heavy, "{heading:?} {direction:?} {least}");
                }
                let grown = weights(&selection, &selection.tree(direction, Growth::Heaviest(50)));
                assert!(grown.len() < whole.len());
                assert!(grown.iter().all(|(path, weight)| whole[path] == *weight || weight[0] == 0));
            }
        }
    }
}
