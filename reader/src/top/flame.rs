//! The flame graph in terminal cells: roots on top, callees below, widths by weight.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use selfwind_profile::call_tree::CallTree;

use super::view::View;
use super::window::Window;
use crate::terminal::screen::{fit, printable};

/// Warm colours of the 256-colour palette, different for neighbours.
const COLOURS: [u8; 8] = [208, 214, 172, 220, 178, 209, 215, 180];

/// A node of at least one cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    node: u32,
    depth: usize,
    start: u16,
    end: u16,
}

/// Draws the call tree of the view.
pub(super) fn draw(buffer: &mut Buffer, area: Rect, view: &View, window: &Window, colour: bool) {
    let Some(tree) = &view.picture.tree else { return };
    let selected = view.node();
    let on_path = path_to(tree, selected);
    // Scroll so that the selected line is visible.
    let depth = on_path.len().saturating_sub(1);
    let first = (depth + 2).saturating_sub(area.height.into());
    for block in blocks(tree, area.width) {
        let Some(line) = block.depth.checked_sub(first).filter(|line| *line < area.height.into()) else {
            continue;
        };
        let width = usize::from(block.end - block.start);
        let node = tree.node(block.node);
        let text = if block.node == 0 { "all" } else { window.text(node.label) };
        // A bar separates neighbours, also without colours.
        let name = fit(&printable(text), width.saturating_sub(1)).into_owned();
        let text = if width > 1 { format!("▏{name:<0$}", width - 1) } else { "▏".into() };
        let mut style = Style::new();
        if colour {
            let index = node.label as usize % COLOURS.len();
            style = style.fg(Color::Black).bg(Color::Indexed(COLOURS[index]));
        }
        if block.node != 0 && view.matches(window.text(node.label)) {
            style = style.add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
            style = if colour { style.bg(Color::Magenta) } else { style };
        }
        if block.node == selected {
            style = style.add_modifier(Modifier::REVERSED);
        }
        buffer.set_stringn(area.x + block.start, area.y + line as u16, text, width, style);
    }
}

/// The nodes from the root to this one.
fn path_to(tree: &CallTree, node: u32) -> Vec<u32> {
    let mut path = vec![node];
    let mut at = node;
    while at != 0 {
        at = tree.node(at).parent;
        path.push(at);
    }
    path.reverse();
    path
}

/// All nodes of at least one cell, with `width` columns for the root.
fn blocks(tree: &CallTree, width: u16) -> Vec<Block> {
    let mut blocks = Vec::new();
    let whole = tree.nodes[0].total;
    if whole == 0 {
        return blocks;
    }
    // Positions are sums of weights, rounded once, so neighbours neither overlap nor leave gaps.
    let column = |weight: u64| {
        ((u128::from(weight) * u128::from(width) + u128::from(whole) / 2) / u128::from(whole)) as u16
    };
    let mut pending = vec![(0u32, 0usize, 0u64)];
    while let Some((node, depth, before)) = pending.pop() {
        let (start, end) = (column(before), column(before + tree.node(node).total));
        if start == end {
            continue;
        }
        blocks.push(Block { node, depth, start, end });
        let mut at = before;
        for &child in tree.children(node) {
            pending.push((child, depth + 1, at));
            at += tree.node(child).total;
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use selfwind_profile::call_tree::{Direction, Stacks, Step};

    struct Made;

    impl Stacks for Made {
        fn labels(&self) -> usize {
            4
        }
        fn text(&self, label: u32) -> &str {
            ["a", "b", "c", "d"][label as usize]
        }
        fn each(&self, each: &mut dyn FnMut(&[Step], u64)) {
            for (labels, weight) in [(&[0u32, 1][..], 50), (&[0, 2], 30), (&[3], 19), (&[0, 3], 1)] {
                each(&labels.iter().map(|&label| Step::certain(label)).collect::<Vec<_>>(), weight);
            }
        }
    }

    #[test]
    fn blocks_fill_their_parents_without_overlap() {
        let tree = CallTree::new(&Made, Direction::Callees, 0);
        for width in [1, 7, 20, 80, 200] {
            let blocks = blocks(&tree, width);
            assert_eq!(blocks[0], Block { node: 0, depth: 0, start: 0, end: width });
            for block in &blocks[1..] {
                let parent = tree.node(block.node).parent;
                let above = blocks.iter().find(|other| other.node == parent).unwrap();
                assert!(
                    above.start <= block.start && block.end <= above.end && above.depth + 1 == block.depth
                );
            }
            for depth in 1..3 {
                let mut line: Vec<&Block> = blocks.iter().filter(|block| block.depth == depth).collect();
                line.sort_by_key(|block| block.start);
                assert!(line.windows(2).all(|pair| pair[0].end <= pair[1].start));
            }
        }
    }
}
