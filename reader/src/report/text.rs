//! The report as text.
//!
//! A header, the functions, the call tree. Chains of calls that do not branch share a line, and the
//! heaviest lines are kept, so that the tree of a deep program still fits a screen.

use std::collections::{BinaryHeap, HashSet};

use super::screen::{Screen, Style, fit, printable};
use super::short_name::short_name;
use super::{ReportOptions, View};
use crate::profile::Profile;
use crate::profile::tree::{CallTree, Direction, FunctionWeight, Label, function_weights};

/// Rows of the table and of the tree when the output is no terminal.
const PIPE_ROWS: usize = 40;
/// Rows of the table and of the tree on the smallest terminals.
const FEWEST_ROWS: usize = 5;
/// Widest column of modules.
const MODULE_WIDTH: usize = 24;
/// Columns before a name: two percentages, or one.
const NUMBERS_WIDTH: usize = 17;
const NUMBER_WIDTH: usize = 9;
/// Least share of a line of the tree, in thousandths of everything.
const LEAST_SHARE: u64 = 5;
/// A chain goes on in a child with at least this share of its head, in percent.
const CHAIN_SHARE: u64 = 95;

/// Renders a report.
pub(super) fn render(profile: &Profile, name: &str, options: &ReportOptions, screen: Screen) -> String {
    let mut page = Page { profile, screen, text: String::new() };
    page.header(name);
    if profile.totals.weight > 0 {
        let footer = page.footer_lines();
        let rows = page.rows(options.limit, footer.len());
        page.table(options.view, rows.0);
        page.tree(options.view, rows.1);
        page.footer(&footer);
    } else {
        page.line(
            "No samples: the program used too little CPU time, or none of its processes ran the agent.",
        );
        let footer = page.footer_lines();
        page.footer(&footer);
    }
    page.text
}

/// Orders functions for a view; equals by name and module.
pub(super) fn sort(profile: &Profile, view: View, weights: &mut [FunctionWeight]) {
    let key = |weight: &FunctionWeight| match view {
        View::Children => (weight.total, weight.own),
        View::Both | View::NoChildren => (weight.own, weight.total),
    };
    weights.sort_by(|a, b| {
        (key(b).cmp(&key(a)))
            .then_with(|| profile.function_name(a.function).cmp(profile.function_name(b.function)))
            .then_with(|| profile.module_name(a.function).cmp(&profile.module_name(b.function)))
    });
}

struct Page<'a> {
    profile: &'a Profile,
    screen: Screen,
    text: String,
}

impl Page<'_> {
    fn line(&mut self, text: &str) {
        self.text.push_str(text.trim_end());
        self.text.push('\n');
    }

    fn percent(&self, weight: u64) -> f64 {
        weight as f64 * 100.0 / self.profile.totals.weight.max(1) as f64
    }

    /// A share, seven columns wide; empty for none.
    fn share(&self, weight: u64) -> String {
        if weight == 0 {
            return " ".repeat(7);
        }
        let percent = self.percent(weight);
        let text = format!("{percent:>6.1}%");
        self.screen.paint(Style::of_share(percent), &text).into_owned()
    }

    fn header(&mut self, name: &str) {
        let Profile { session, stats, totals, .. } = self.profile;
        let command = session.command.join(" ");
        let title = if command.is_empty() { name.to_owned() } else { format!("{name}: {command}") };
        let title = fit(&printable(&title), self.screen.width).into_owned();
        let title = self.screen.paint(Style::Bold, &title).into_owned();
        self.line(&title);
        let mut facts = vec![
            format!("{} samples", grouped(totals.samples)),
            format!("weight {}", grouped(totals.weight)),
            format!("{:.2} s", stats.detail.duration_ns as f64 / 1e9),
            format!("lost {}", grouped(stats.lost)),
            format!("truncated {:.1}%", totals.truncated as f64 * 100.0 / totals.samples.max(1) as f64),
            counted(stats.threads, "thread", "threads"),
            counted(stats.processes, "process", "processes"),
        ];
        if session.frequency > 0 {
            facts.push(format!("{} Hz", session.frequency));
        }
        self.facts(&facts);
    }

    /// Facts side by side, on as many lines as they need.
    fn facts(&mut self, facts: &[String]) {
        let mut line = String::new();
        for fact in facts {
            if !line.is_empty() && line.chars().count() + 2 + fact.chars().count() > self.screen.width {
                self.line(&std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push_str("  ");
            }
            line.push_str(fact);
        }
        self.line(&line);
    }

    /// Rows for the table and for the tree.
    fn rows(&self, limit: Option<usize>, footer: usize) -> (usize, usize) {
        match (limit, self.screen.height) {
            (Some(0), _) => (usize::MAX, usize::MAX),
            (Some(limit), _) => (limit, limit),
            (None, None) => (PIPE_ROWS, PIPE_ROWS),
            (None, Some(height)) => {
                // The header so far, two headings, a remark, three empty lines, the prompt.
                let taken = self.text.lines().count() + 7 + footer;
                let left = height.saturating_sub(taken);
                let table = (left * 2 / 5).max(FEWEST_ROWS);
                (table, left.saturating_sub(table).max(FEWEST_ROWS))
            }
        }
    }

    fn table(&mut self, view: View, rows: usize) {
        let mut weights = function_weights(self.profile);
        sort(self.profile, view, &mut weights);
        let wanted = |weight: &&FunctionWeight| match view {
            View::NoChildren => weight.own > 0,
            View::Both | View::Children => weight.total > 0,
        };
        let shown: Vec<&FunctionWeight> = weights.iter().filter(wanted).take(rows).collect();
        let hidden = weights.iter().filter(wanted).count() - shown.len();
        let modules: Vec<String> = shown.iter().map(|w| self.profile.module_name(w.function)).collect();
        let widest = modules.iter().map(|module| module.chars().count()).max().unwrap_or(0);
        let module_width = widest.clamp("MODULE".len(), MODULE_WIDTH.min(self.screen.width / 4));
        let numbers = if view == View::NoChildren { NUMBER_WIDTH } else { NUMBERS_WIDTH };
        let longest = shown.iter().map(|w| self.profile.function_name(w.function).chars().count()).max();
        let room = self.screen.width.saturating_sub(numbers + module_width + 2);
        let name_width = longest.unwrap_or(0).clamp("FUNCTION".len(), room.max("FUNCTION".len()));

        let numbers = if view == View::NoChildren { "   SELF  " } else { "   SELF   TOTAL  " };
        let heading = format!("{numbers}{:<name_width$}  MODULE", "FUNCTION");
        let heading = self.screen.paint(Style::Bold, &heading).into_owned();
        self.text.push('\n');
        self.line(&heading);
        for (weight, module) in shown.iter().zip(&modules) {
            let name = printable(self.profile.function_name(weight.function));
            let name = short_name(&name, name_width).into_owned();
            let module = fit(&printable(module), module_width).into_owned();
            let module = self.screen.paint(Style::Dim, &module).into_owned();
            let own = self.share(weight.own);
            let numbers = match view {
                View::NoChildren => own,
                View::Both | View::Children => format!("{own} {}", self.share(weight.total)),
            };
            self.line(&format!("{numbers}  {name:<name_width$}  {module}"));
        }
        if hidden > 0 {
            let functions = counted(hidden as u64, "more function", "more functions");
            let own: u64 = shown.iter().map(|weight| weight.own).sum();
            let rest = self.percent(self.profile.totals.weight - own);
            self.remark(&format!("… {functions} with {rest:.1}% of self; --limit 0 shows all"));
        }
    }

    fn remark(&mut self, text: &str) {
        let text = fit(text, self.screen.width).into_owned();
        let text = self.screen.paint(Style::Dim, &text).into_owned();
        self.line(&text);
    }

    fn tree(&mut self, view: View, rows: usize) {
        let (direction, what) = match view {
            View::NoChildren => (Direction::Callers, "CALLERS, from the hottest function"),
            View::Both | View::Children => (Direction::Callees, "CALLS, from the root"),
        };
        let names: HashSet<String> = self.profile.processes.iter().map(|process| process.name()).collect();
        let tree = CallTree::new(self.profile, direction, names.len() > 1 && direction == Direction::Callees);
        let least = if rows == usize::MAX { 0 } else { self.profile.totals.weight * LEAST_SHARE / 1000 };
        let chains = Chains::new(&tree, least.max(1));
        let visible = chains.heaviest(rows);
        // In a tree of callers the weight that ends in a node is that of stacks that begin there: no use to show.
        let with_own = direction == Direction::Callees;
        let numbers = if with_own { "  TOTAL    SELF" } else { "  TOTAL" };
        let heading = format!("{numbers}  {what}");
        let heading = self.screen.paint(Style::Bold, &fit(&heading, self.screen.width)).into_owned();
        self.text.push('\n');
        self.line(&heading);
        let roots = visible.iter().copied().filter(|&chain| chains.list[chain].parent.is_none()).collect();
        let mut pending: Vec<(usize, String, &str)> = Vec::new();
        push_siblings(&mut pending, roots, "", true);
        while let Some((chain, indent, branch)) = pending.pop() {
            self.chain(&tree, &chains.list[chain], &format!("{indent}{branch}"), with_own);
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

    fn chain(&mut self, tree: &CallTree, chain: &Chain, lead: &str, with_own: bool) {
        let (head, last) = (chain.nodes[0], chain.nodes[chain.nodes.len() - 1]);
        let own = tree.nodes[last as usize].own;
        let total = self.share(tree.nodes[head as usize].total);
        let numbers = if with_own { format!("{total} {}  ", self.share(own)) } else { format!("{total}  ") };
        let deep = self.screen.width / 2;
        let lead: String = if lead.chars().count() > deep {
            let skip = lead.chars().count() - deep + 1;
            std::iter::once('…').chain(lead.chars().skip(skip)).collect()
        } else {
            lead.to_owned()
        };
        let room = self.screen.width.saturating_sub(NUMBERS_WIDTH + lead.chars().count()).max(12);
        let names: Vec<String> =
            chain.nodes.iter().map(|&node| self.label(tree, tree.nodes[node as usize].label)).collect();
        let line = format!("{numbers}{}{}", self.screen.paint(Style::Dim, &lead), joined(&names, room));
        self.line(&line);
    }

    fn label(&self, tree: &CallTree, label: Label) -> String {
        let text = printable(tree.text(self.profile, label)).into_owned();
        let Label::Group(group) = label else { return text };
        match *tree.groups[group as usize].processes {
            [one] => format!("{text} (pid {})", self.profile.processes[one as usize].info.pid),
            ref many => format!("{text} ({} processes)", many.len()),
        }
    }

    fn footer_lines(&self) -> Vec<String> {
        let totals = &self.profile.totals;
        let mut lines = Vec::new();
        if totals.frame_pointer + totals.guessed > 0 {
            let share = |frames: u64| frames as f64 * 100.0 / totals.frames.max(1) as f64;
            lines.push(format!(
                "frames not from call frame information: {} by frame pointer ({:.2}%), {} guessed ({:.2}%)",
                grouped(totals.frame_pointer),
                share(totals.frame_pointer),
                grouped(totals.guessed),
                share(totals.guessed),
            ));
        }
        if !self.profile.stats.detail.complete {
            lines.push("the recorder did not end in order; this is what it had written".into());
        }
        lines.extend(self.profile.notes.iter().map(|note| printable(note).into_owned()));
        lines.iter().flat_map(|line| wrapped(&format!("note: {line}"), self.screen.width)).collect()
    }

    fn footer(&mut self, lines: &[String]) {
        if !lines.is_empty() {
            self.text.push('\n');
        }
        for line in lines {
            let line = self.screen.paint(Style::Dim, line).into_owned();
            self.line(&line);
        }
    }
}

/// Puts siblings on the stack of lines to print, the last first.
fn push_siblings(pending: &mut Vec<(usize, String, &str)>, chains: Vec<usize>, indent: &str, root: bool) {
    let last = chains.len().saturating_sub(1);
    // What does not branch needs no branch drawn.
    for (place, chain) in chains.into_iter().enumerate().rev() {
        let branch = match (root, place == last) {
            (true, _) => "",
            (false, true) => "└ ",
            (false, false) => "├ ",
        };
        pending.push((chain, indent.to_owned(), branch));
    }
}

/// Calls that do not branch.
struct Chain {
    /// Its nodes, the head first.
    nodes: Vec<u32>,
    /// Weight of its head.
    total: u64,
    /// The chain it hangs on.
    parent: Option<usize>,
    /// What hangs on it, the heaviest first.
    children: Vec<usize>,
}

/// A tree of chains.
struct Chains {
    list: Vec<Chain>,
}

impl Chains {
    /// All chains with at least the weight `least`.
    fn new(tree: &CallTree, least: u64) -> Self {
        let heavy = |node: u32| {
            let children = tree.nodes[node as usize].children.iter().copied();
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

    /// The heaviest `rows` chains; with each the one it hangs on.
    fn heaviest(&self, rows: usize) -> std::collections::BTreeSet<usize> {
        let mut heap: BinaryHeap<(u64, std::cmp::Reverse<usize>)> = BinaryHeap::new();
        let roots = self.list.iter().enumerate().filter(|(_, chain)| chain.parent.is_none());
        heap.extend(roots.map(|(number, chain)| (chain.total, std::cmp::Reverse(number))));
        let mut visible = std::collections::BTreeSet::new();
        while visible.len() < rows
            && let Some((_, std::cmp::Reverse(number))) = heap.pop()
        {
            visible.insert(number);
            let children = self.list[number].children.iter();
            heap.extend(children.map(|&child| (self.list[child].total, std::cmp::Reverse(child))));
        }
        visible
    }
}

/// Names of a chain on one line of `room` columns: all, else the first and the last ones, else shortened.
fn joined(names: &[String], room: usize) -> String {
    const ARROW: &str = " > ";
    let length = |text: &str| text.chars().count();
    let whole = names.join(ARROW);
    if length(&whole) <= room {
        return whole;
    }
    let [first, .., last] = names else { return short_name(&whole, room).into_owned() };
    // The first name heads the line, the last ones are nearest to the next line: one third, two thirds.
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

/// `text` on lines of at most `width` columns, broken at spaces; what has none is left long.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(format!("  {word}")),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A number with its digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}
