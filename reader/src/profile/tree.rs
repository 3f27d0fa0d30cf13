//! Functions and call trees of a profile.

use std::collections::{BTreeMap, HashMap};

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

/// What a node of a call tree stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Label {
    /// Everything.
    All,
    /// The processes of one name: a place in [`CallTree::groups`].
    Group(u32),
    /// A function.
    Function(FunctionId),
}

/// A node of a call tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// What it stands for.
    pub label: Label,
    /// The node above; node 0 is its own.
    pub parent: u32,
    /// Weight of stacks that end here.
    pub own: u64,
    /// Weight of stacks through here.
    pub total: u64,
    /// Places of its children, the heaviest first, equals by name.
    pub children: Vec<u32>,
}

/// The processes of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The name.
    pub name: String,
    /// Places of the process images in [`Profile::processes`].
    pub processes: Vec<u32>,
}

/// A call tree; node 0 holds everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallTree {
    /// The nodes, each behind its parent.
    pub nodes: Vec<Node>,
    /// The groups that labels name.
    pub groups: Vec<Group>,
}

impl CallTree {
    /// Builds the tree of a whole profile. With `grouped`, processes of different names are apart.
    /// Stacks without any frame weigh on the node above alone.
    pub fn new(profile: &Profile, direction: Direction, grouped: bool) -> Self {
        let mut builder = Builder {
            nodes: vec![Node { label: Label::All, parent: 0, own: 0, total: 0, children: Vec::new() }],
            known: HashMap::new(),
        };
        let groups = if grouped { groups(profile) } else { Vec::new() };
        let mut group_of = vec![None; profile.processes.len()];
        for (number, group) in groups.iter().enumerate() {
            group.processes.iter().for_each(|&process| group_of[process as usize] = Some(number as u32));
        }
        // Summed first: many threads share a stack, and a stack is walked once per group.
        let mut weights: BTreeMap<(u32, Option<u32>), u64> = BTreeMap::new();
        for Bucket { thread, stack, weight, .. } in &profile.buckets {
            let group = group_of[profile.threads[*thread as usize].process as usize];
            *weights.entry((*stack, group)).or_default() += weight;
        }
        let mut path = Vec::new();
        for ((stack, group), weight) in weights {
            path.clear();
            path.extend(profile.functions_from_root(&profile.stacks[stack as usize]).map(Label::Function));
            if direction == Direction::Callers {
                path.reverse();
            }
            builder.add(group.map(Label::Group).into_iter().chain(path.iter().copied()), weight);
        }
        let mut tree = CallTree { nodes: builder.nodes, groups };
        tree.sort(profile);
        tree
    }

    /// The text of a label.
    pub fn text<'a>(&'a self, profile: &'a Profile, label: Label) -> &'a str {
        match label {
            Label::All => "all",
            Label::Group(group) => &self.groups[group as usize].name,
            Label::Function(function) => profile.function_name(function),
        }
    }

    fn sort(&mut self, profile: &Profile) {
        let keys: Vec<(u64, Label)> = self.nodes.iter().map(|node| (node.total, node.label)).collect();
        let mut children: Vec<Vec<u32>> =
            self.nodes.iter_mut().map(|node| std::mem::take(&mut node.children)).collect();
        for list in &mut children {
            list.sort_by(|&a, &b| {
                let ((total_a, label_a), (total_b, label_b)) = (keys[a as usize], keys[b as usize]);
                (total_b.cmp(&total_a))
                    .then_with(|| self.text(profile, label_a).cmp(self.text(profile, label_b)))
                    .then(label_a.cmp(&label_b))
            });
        }
        for (node, list) in self.nodes.iter_mut().zip(children) {
            node.children = list;
        }
    }
}

/// A tree that grows.
struct Builder {
    nodes: Vec<Node>,
    known: HashMap<(u32, Label), u32>,
}

impl Builder {
    fn add(&mut self, path: impl Iterator<Item = Label>, weight: u64) {
        self.nodes[0].total += weight;
        let mut at = 0u32;
        for label in path {
            let next = self.nodes.len() as u32;
            let parent = at;
            at = *self.known.entry((parent, label)).or_insert(next);
            if at == next {
                self.nodes.push(Node { label, parent, own: 0, total: 0, children: Vec::new() });
                self.nodes[parent as usize].children.push(at);
            }
            self.nodes[at as usize].total += weight;
        }
        self.nodes[at as usize].own += weight;
    }
}

/// The processes that were hit, by name.
fn groups(profile: &Profile) -> Vec<Group> {
    let mut hit: Vec<u32> =
        profile.buckets.iter().map(|bucket| profile.threads[bucket.thread as usize].process).collect();
    hit.sort_unstable();
    hit.dedup();
    let mut groups: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for process in hit {
        groups.entry(profile.processes[process as usize].name()).or_default().push(process);
    }
    groups.into_iter().map(|(name, processes)| Group { name, processes }).collect()
}
