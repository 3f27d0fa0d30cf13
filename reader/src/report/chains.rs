//! Collapses the call tree: calls that do not branch share a line, and only the heaviest lines are kept, so that the tree of a
//! deep program fits a screen.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use selfwind_profile::call_tree::CallTree;

use crate::terminal::short_name::short_name;

/// A chain continues into a child that has at least this share of the chain's head, in percent.
const CHAIN_SHARE: u64 = 95;

/// A chain of calls without branches, shown on one line.
pub(super) struct Chain {
    /// Its nodes, from the head down.
    pub(super) nodes: Vec<u32>,
    /// Weight of its head.
    total: u64,
    /// The parent chain.
    pub(super) parent: Option<usize>,
    /// The child chains, heaviest first.
    pub(super) children: Vec<usize>,
}

/// A tree of chains.
pub(super) struct Chains {
    pub(super) list: Vec<Chain>,
}

impl Chains {
    /// All chains with at least the weight `least`.
    pub(super) fn new(tree: &CallTree, least: u64) -> Self {
        let heavy = |node: u32| {
            let children = tree.children(node).iter().copied();
            children.filter(|&child| tree.nodes[child as usize].total >= least).collect::<Vec<u32>>()
        };
        let mut list: Vec<Chain> = Vec::new();
        let mut pending: Vec<(Option<usize>, u32)> = heavy(0).into_iter().rev().map(|c| (None, c)).collect();
        while let Some((parent, head)) = pending.pop() {
            let number = list.len();
            let total = tree.nodes[head as usize].total;
            let mut nodes = vec![head];
            let mut next = heavy(head);
            while let [only] = *next
                && tree.nodes[only as usize].total * 100 >= total * CHAIN_SHARE
            {
                nodes.push(only);
                next = heavy(only);
            }
            list.push(Chain { nodes, total, parent, children: Vec::new() });
            if let Some(parent) = parent {
                list[parent].children.push(number);
            }
            pending.extend(next.into_iter().rev().map(|child| (Some(number), child)));
        }
        Chains { list }
    }

    /// The heaviest `rows` chains, each with its parent.
    pub(super) fn heaviest(&self, rows: usize) -> BTreeSet<usize> {
        let mut heap: BinaryHeap<(u64, Reverse<usize>)> = BinaryHeap::new();
        let roots = self.list.iter().enumerate().filter(|(_, chain)| chain.parent.is_none());
        heap.extend(roots.map(|(number, chain)| (chain.total, Reverse(number))));
        let mut visible = BTreeSet::new();
        while visible.len() < rows
            && let Some((_, Reverse(number))) = heap.pop()
        {
            visible.insert(number);
            let children = self.list[number].children.iter();
            heap.extend(children.map(|&child| (self.list[child].total, Reverse(child))));
        }
        visible
    }
}

/// The names of a chain on one line of `room` columns: all of them if they fit, else the first and last ones, else shortened.
pub(super) fn joined(names: &[String], room: usize) -> String {
    const ARROW: &str = " > ";
    let length = |text: &str| text.chars().count();
    let whole = names.join(ARROW);
    if length(&whole) <= room {
        return whole;
    }
    let [first, .., last] = names else { return short_name(&whole, room).into_owned() };
    // One third of the room goes to the first names, two thirds to the last ones, which are next to the following line.
    let skipped = |count: usize| if count == 0 { String::new() } else { format!("({count} more){ARROW}") };
    let mark = length(&skipped(names.len() - 2));
    let room = room.saturating_sub(ARROW.len() + mark);
    let first = short_name(first, (room / 3).max(room.saturating_sub(length(last))));
    let mut left = room.saturating_sub(length(&first));
    let last = short_name(last, left);
    left = left.saturating_sub(length(&last));
    let mut from = names.len() - 1;
    let mut tail = last.into_owned();
    while from > 1 && length(&names[from - 1]) + ARROW.len() <= left {
        from -= 1;
        left -= length(&names[from]) + ARROW.len();
        tail = format!("{}{ARROW}{tail}", names[from]);
    }
    format!("{first}{ARROW}{}{tail}", skipped(from - 1))
}
