//! The call tree as lines.

use selfwind_profile::call_tree::{Direction, Stacks};
use selfwind_profile::selection::{Growth, Label, Selection};

use super::chains::{Chain, Chains, joined};
use super::options::View;
use super::recursion::Folded;
use super::table::{GUESSED, is_guess};
use super::text::Page;
use crate::terminal::screen::{Style, printable};

/// Columns before a name: two percentages.
const NUMBERS_WIDTH: usize = 17;
/// Marks a function that calls itself.
const RECURSIVE: &str = " ↻";
/// Minimum share of a line in the tree, in thousandths of the total.
const LEAST_SHARE: u64 = 5;

impl Page<'_> {
    pub(super) fn tree(&mut self, selection: &Selection<'_>, view: View, rows: usize) {
        let (direction, what) = match view {
            View::NoChildren => (Direction::Callers, "CALLERS, from the hottest function"),
            View::Both | View::Children => (Direction::Callees, "CALLS, from the root"),
        };
        let least = if rows == usize::MAX { 0 } else { self.whole * LEAST_SHARE / 1000 };
        let growth = if least == 0 { Growth::Whole } else { Growth::AtLeast(least) };
        let folded = Folded::new(&selection.tree(direction, growth), selection);
        let chains = Chains::new(&folded.tree, least.max(1));
        let visible = chains.heaviest(rows);
        // In a tree of callers, the self weight of a node is that of stacks that begin there, which is not worth showing.
        let with_own = direction == Direction::Callees;
        let numbers = if with_own { "  TOTAL    SELF" } else { "  TOTAL" };
        let more = match chains.list.len() - visible.len() {
            0 => String::new(),
            hidden => format!(" (… {hidden} more lines; --limit 0)"),
        };
        self.heading(&format!("{numbers}  {what}{more}"));
        let roots = visible.iter().copied().filter(|&chain| chains.list[chain].parent.is_none()).collect();
        let mut pending: Vec<(usize, String, &str)> = Vec::new();
        push_siblings(&mut pending, roots, "", true);
        while let Some((chain, indent, branch)) = pending.pop() {
            self.chain(selection, &folded, &chains.list[chain], &format!("{indent}{branch}"), with_own);
            let children =
                chains.list[chain].children.iter().copied().filter(|c| visible.contains(c)).collect();
            let below = match branch {
                "├ " => format!("{indent}│ "),
                "└ " => format!("{indent}  "),
                _ => indent,
            };
            push_siblings(&mut pending, children, &below, false);
        }
    }

    fn chain(
        &mut self,
        selection: &Selection<'_>,
        folded: &Folded,
        chain: &Chain,
        lead: &str,
        with_own: bool,
    ) {
        let tree = &folded.tree;
        let (head, last) = (chain.nodes[0], chain.nodes[chain.nodes.len() - 1]);
        let total = self.share(tree.node(head).total);
        let numbers = if with_own {
            format!("{total} {}  ", self.share(tree.node(last).own))
        } else {
            format!("{total}  ")
        };
        let deep = self.screen.width / 2;
        let lead: String = if lead.chars().count() > deep {
            let skip = lead.chars().count() - deep + 1;
            std::iter::once('…').chain(lead.chars().skip(skip)).collect()
        } else {
            lead.to_owned()
        };
        let room = self.screen.width.saturating_sub(NUMBERS_WIDTH + lead.chars().count()).max(12);
        let names: Vec<String> = chain.nodes.iter().map(|&node| self.node(selection, folded, node)).collect();
        let line = format!("{numbers}{}{}", self.screen.paint(Style::Dim, &lead), joined(&names, room));
        self.line(&line);
    }

    fn node(&self, selection: &Selection<'_>, folded: &Folded, number: u32) -> String {
        let node = folded.tree.node(number);
        let mark = if folded.recursive[number as usize] { RECURSIVE } else { "" };
        let text = format!("{}{mark}", printable(selection.text(node.label)));
        match selection.label(node.label) {
            Label::Processes(processes) => match **processes {
                [one] => format!("{text} (pid {})", self.profile.processes[one as usize].info.pid),
                ref many => format!("{text} ({} processes)", many.len()),
            },
            _ if is_guess(node.guessed, node.total) => format!("{text}{GUESSED}"),
            _ => text,
        }
    }
}

/// Pushes siblings onto the stack of lines to print, last one first.
fn push_siblings(pending: &mut Vec<(usize, String, &str)>, chains: Vec<usize>, indent: &str, root: bool) {
    let last = chains.len().saturating_sub(1);
    // A single root needs no branch lines.
    for (index, chain) in chains.into_iter().enumerate().rev() {
        let branch = match (root, index == last) {
            (true, _) => "",
            (false, true) => "└ ",
            (false, false) => "├ ",
        };
        pending.push((chain, indent.to_owned(), branch));
    }
}
