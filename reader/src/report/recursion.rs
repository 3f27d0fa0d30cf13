//! Folds recursion: a function that calls itself is one line of the tree instead of one per depth.
//!
//! Only exact repetitions are folded, `f > f` and `f > g > f > g`. Between two calls of an interpreter's loop, for example, there
//! are different functions of the interpreted program, and their calls must stay visible.

use std::collections::HashMap;

use selfwind_profile::call_tree::{ALL, CallTree, Node, Stacks};

/// Maximum length of a repeated chain.
const LONGEST: usize = 8;

/// A call tree without repetitions.
pub(super) struct Folded {
    pub(super) tree: CallTree,
    /// By node index: true for the last node of a repeated chain.
    pub(super) recursive: Vec<bool>,
}

impl Folded {
    /// Folds `tree`, whose labels are those of `stacks`. A node's weight is the sum over all recursion depths.
    pub(super) fn new(tree: &CallTree, stacks: &dyn Stacks) -> Self {
        let mut nodes = vec![Node::new(ALL, 0)];
        let mut recursive = vec![false];
        let mut known: HashMap<(u32, u32), u32> = HashMap::new();
        // For each node: its folded node, and the weight that is not in any child.
        let mut folded = vec![0u32; tree.nodes.len()];
        for (number, node) in tree.nodes.iter().enumerate() {
            if number > 0 {
                let parent = folded[node.parent as usize];
                folded[number] = match repeated(&nodes, parent, node.label) {
                    Some(before) => {
                        recursive[before as usize] = true;
                        before
                    }
                    None => *known.entry((parent, node.label)).or_insert_with(|| {
                        nodes.push(Node::new(node.label, parent));
                        recursive.push(false);
                        nodes.len() as u32 - 1
                    }),
                };
            }
            let children: u64 =
                tree.children(number as u32).iter().map(|&child| tree.node(child).total).sum();
            let to = &mut nodes[folded[number] as usize];
            to.own += node.own;
            to.total += node.total.saturating_sub(children);
            to.frame_pointer += node.frame_pointer;
            to.guessed += node.guessed;
        }
        for number in (1..nodes.len()).rev() {
            let (total, parent) = (nodes[number].total, nodes[number].parent as usize);
            nodes[parent].total += total;
        }
        for node in &mut nodes {
            node.guessed = node.guessed.min(node.total);
            node.frame_pointer = node.frame_pointer.min(node.total - node.guessed);
        }
        Folded { tree: CallTree::of(nodes, stacks), recursive }
    }
}

/// The node that `label` under `parent` folds into: the end of the same chain of labels, one repetition earlier.
fn repeated(nodes: &[Node], parent: u32, label: u32) -> Option<u32> {
    // The path upwards from the new node, which does not exist yet.
    let mut path = Vec::with_capacity(2 * LONGEST);
    let mut at = parent;
    while at > 0 && path.len() < 2 * LONGEST - 1 {
        path.push(at);
        at = nodes[at as usize].parent;
    }
    let label_of = |up: usize| if up == 0 { label } else { nodes[path[up - 1] as usize].label };
    let fits = |length: usize| (0..length).all(|up| label_of(up) == label_of(up + length));
    let length =
        (1..=LONGEST).take_while(|length| 2 * length <= path.len() + 1).find(|&length| fits(length))?;
    Some(path[length - 1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use selfwind_profile::call_tree::{Direction, Step};

    struct Made(Vec<(&'static str, u64)>);

    impl Stacks for Made {
        fn labels(&self) -> usize {
            256
        }
        fn text(&self, _: u32) -> &str {
            ""
        }
        fn each(&self, each: &mut dyn FnMut(&[Step], u64)) {
            for (stack, weight) in &self.0 {
                let steps: Vec<Step> = stack.bytes().map(|label| Step::certain(label.into())).collect();
                each(&steps, *weight);
            }
        }
    }

    /// Paths, totals, own weights.
    fn folded(stacks: &[(&'static str, u64)]) -> Vec<(String, u64, u64, bool)> {
        let made = Made(stacks.to_vec());
        let Folded { tree, recursive } = Folded::new(&CallTree::new(&made, Direction::Callees, 0), &made);
        let total: u64 = stacks.iter().map(|(_, weight)| weight).sum();
        assert_eq!(tree.nodes[0].total, total);
        let mut rows = Vec::new();
        for number in 1..tree.nodes.len() as u32 {
            let (mut path, mut at) = (String::new(), number);
            while at > 0 {
                path.insert(0, tree.node(at).label as u8 as char);
                at = tree.node(at).parent;
            }
            let node = tree.node(number);
            rows.push((path, node.total, node.own, recursive[number as usize]));
        }
        rows.sort();
        rows
    }

    #[test]
    fn a_function_that_calls_itself_is_one_line() {
        let rows = folded(&[("mf", 1), ("mff", 2), ("mfff", 4), ("mfffg", 8), ("mfg", 16)]);
        let row = |path: &str, total, own, recursive| (path.to_owned(), total, own, recursive);
        assert_eq!(rows, [row("m", 31, 0, false), row("mf", 31, 7, true), row("mfg", 24, 24, false)]);
    }

    #[test]
    fn a_cycle_is_folded_and_different_callees_are_not() {
        let rows = folded(&[("mababab", 1), ("mababc", 2)]);
        let row = |path: &str, total, own, recursive| (path.to_owned(), total, own, recursive);
        let expected =
            [row("m", 3, 0, false), row("ma", 3, 0, false), row("mab", 3, 1, true), row("mabc", 2, 2, false)];
        assert_eq!(rows.into_iter().filter(|row| row.1 > 0).collect::<Vec<_>>(), expected);
        // An interpreter's loop `e` between its program's functions.
        let rows = folded(&[("mexeye", 1)]);
        assert_eq!(rows.last().map(|row| row.0.as_str()), Some("mexeye"));
    }
}
