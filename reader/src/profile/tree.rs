//! Functions and call trees of a profile.

use std::collections::HashMap;

use super::{Bucket, FunctionId, Profile};

/// What a function weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionWeight {
    /// The function.
    pub function: FunctionId,
    /// Weight of stacks that end in it.
    pub own: u64,
    /// Weight of stacks that contain it, each counted once however often it recurs.
    pub total: u64,
}

/// The weights of all functions, in the order of their numbers.
pub fn function_weights(profile: &Profile) -> Vec<FunctionWeight> {
    let mut weights: Vec<FunctionWeight> = (0..profile.functions.len() as u32)
        .map(|number| FunctionWeight { function: FunctionId(number), own: 0, total: 0 })
        .collect();
    let mut seen_in = vec![usize::MAX; weights.len()];
    for (stack, weight) in stack_weights(profile).into_iter().enumerate() {
        let mut leaf = None;
        for function in profile.functions_from_root(&profile.stacks[stack]) {
            let place = function.0 as usize;
            if seen_in[place] != stack {
                seen_in[place] = stack;
                weights[place].total += weight;
            }
            leaf = Some(place);
        }
        if let Some(leaf) = leaf {
            weights[leaf].own += weight;
        }
    }
    weights
}

/// The weight of each stack over all threads.
fn stack_weights(profile: &Profile) -> Vec<u64> {
    let mut weights = vec![0; profile.stacks.len()];
    for Bucket { stack, weight, .. } in &profile.buckets {
        weights[*stack as usize] += weight;
    }
    weights
}

/// Which way a tree grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the roots to what they call.
    Callees,
    /// From the leaves to who calls them.
    Callers,
}

/// A node of a call tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The function; none for the node that holds everything.
    pub function: Option<FunctionId>,
    /// Weight of stacks that end here.
    pub own: u64,
    /// Weight of stacks through here.
    pub total: u64,
    /// Places of its children, the heaviest first, equals by name.
    pub children: Vec<u32>,
}

/// A call tree; node 0 holds everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallTree {
    /// The nodes.
    pub nodes: Vec<Node>,
}

impl CallTree {
    /// Builds the tree of a whole profile. Stacks without any frame weigh on node 0 alone.
    pub fn new(profile: &Profile, direction: Direction) -> Self {
        let mut nodes = vec![Node { function: None, own: 0, total: 0, children: Vec::new() }];
        let mut known: HashMap<(u32, FunctionId), u32> = HashMap::new();
        let mut path = Vec::new();
        for (stack, weight) in profile.stacks.iter().zip(stack_weights(profile)) {
            path.clear();
            path.extend(profile.functions_from_root(stack));
            if direction == Direction::Callers {
                path.reverse();
            }
            nodes[0].total += weight;
            let mut at = 0u32;
            for &function in &path {
                at = *known.entry((at, function)).or_insert_with(|| {
                    let place = nodes.len() as u32;
                    nodes.push(Node { function: Some(function), own: 0, total: 0, children: Vec::new() });
                    nodes[at as usize].children.push(place);
                    place
                });
                nodes[at as usize].total += weight;
            }
            nodes[at as usize].own += weight;
        }
        let mut tree = CallTree { nodes };
        tree.sort(profile);
        tree
    }

    fn sort(&mut self, profile: &Profile) {
        let key = |node: &Node| (node.total, node.function);
        let keys: Vec<_> = self.nodes.iter().map(key).collect();
        let name = |place: u32| keys[place as usize].1.map_or("", |function| profile.function_name(function));
        for node in &mut self.nodes {
            node.children.sort_by(|&a, &b| {
                (keys[b as usize].0.cmp(&keys[a as usize].0))
                    .then_with(|| name(a).cmp(name(b)))
                    .then(a.cmp(&b))
            });
        }
    }
}
