//! The state of the display, and how each key changes it. Independent of terminals and samples.

use std::collections::HashMap;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use selfwind_profile::call_tree::{CallTree, Direction, weights};
use selfwind_profile::measure::Measure;

use super::window::{Window, Zoomed};

/// Rows that a page key moves by.
const PAGE: isize = 10;

/// Table or flame graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Table,
    Flame,
}

/// What to do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Stay,
    Quit,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) label: u32,
    pub(super) own: u64,
    pub(super) total: u64,
    pub(super) guessed: bool,
}

/// What is displayed, after zooming.
#[derive(Default)]
pub(super) struct Picture {
    pub(super) rows: Vec<Row>,
    pub(super) tree: Option<CallTree>,
    pub(super) weight: u64,
}

/// The state of the display.
pub(super) struct View {
    pub(super) mode: Mode,
    /// What the weights of each event count; empty until known.
    pub(super) measures: Vec<Measure>,
    /// Index of the displayed event.
    pub(super) event: u8,
    /// Labels zoomed into, outermost first.
    pub(super) zoom: Vec<u32>,
    /// The selected label of the table.
    pub(super) row: Option<u32>,
    /// The selected path of the flame graph: labels, root first.
    pub(super) path: Vec<u32>,
    /// The search pattern; empty for none.
    pub(super) pattern: String,
    /// The pattern is being typed.
    pub(super) typing: bool,
    pub(super) by_total: bool,
    pub(super) help: bool,
    /// The window as it was when frozen.
    pub(super) frozen: Option<Window>,
    pub(super) picture: Picture,
}

impl View {
    pub(super) fn new() -> Self {
        Self {
            mode: Mode::Table,
            measures: Vec::new(),
            event: 0,
            zoom: Vec::new(),
            row: None,
            path: Vec::new(),
            pattern: String::new(),
            typing: false,
            by_total: false,
            help: false,
            frozen: None,
            picture: Picture::default(),
        }
    }

    /// What the displayed weights count, if there is a choice.
    pub(super) fn measure(&self) -> Option<&Measure> {
        self.measures.get(usize::from(self.event)).filter(|_| self.measures.len() > 1)
    }

    /// Recomputes the display from the frozen window, or else from `window`.
    pub(super) fn refresh(&mut self, window: &Window) {
        let window = self.frozen.as_ref().unwrap_or(window);
        // A window that was reset has other labels.
        self.zoom.retain(|&label| (label as usize) < window.labels());
        let zoomed = Zoomed { window, event: self.event, through: &self.zoom };
        let row = |(label, weight): (usize, &selfwind_profile::call_tree::Weight)| Row {
            label: label as u32,
            own: weight.own,
            total: weight.total,
            guessed: weight.guessed * 2 > weight.total,
        };
        let weights = weights(&zoomed);
        let mut rows: Vec<Row> = weights.iter().enumerate().map(row).collect();
        rows.retain(|row| row.total > 0 && !window.name(row.label).program);
        let by_total = self.by_total;
        rows.sort_by(|a, b| {
            let key = |row: &Row| if by_total { (row.total, row.own) } else { (row.own, row.total) };
            key(b).cmp(&key(a)).then_with(|| window.text(a.label).cmp(window.text(b.label)))
        });
        let tree = CallTree::new(&zoomed, Direction::Callees, 0);
        self.picture = Picture { rows, weight: tree.nodes[0].total, tree: Some(tree) };
    }

    /// True if anything on the display matches the pattern.
    pub(super) fn finds(&self, window: &Window) -> bool {
        self.picture.rows.iter().any(|row| self.matches(window.text(row.label)))
    }

    /// True if `text` matches the pattern; case-sensitive if the pattern has capitals.
    pub(super) fn matches(&self, text: &str) -> bool {
        let pattern = &self.pattern;
        !pattern.is_empty()
            && if pattern.contains(char::is_uppercase) {
                text.contains(pattern)
            } else {
                text.to_lowercase().contains(pattern)
            }
    }

    /// Index of the selected row; the first one if the selected one is gone.
    pub(super) fn selected(&self) -> usize {
        let index = self.row.and_then(|label| self.picture.rows.iter().position(|row| row.label == label));
        index.unwrap_or(0)
    }

    /// The selected node of the flame graph: the deepest existing node on the path; node 0 is the root.
    pub(super) fn node(&self) -> u32 {
        let Some(tree) = &self.picture.tree else { return 0 };
        let mut at = 0;
        for &label in &self.path {
            match tree.children(at).iter().find(|&&child| tree.node(child).label == label) {
                Some(&child) => at = child,
                None => break,
            }
        }
        at
    }

    fn select_node(&mut self, node: u32) {
        let Some(tree) = &self.picture.tree else { return };
        let mut path = Vec::new();
        let mut at = node;
        while at != 0 {
            path.push(tree.node(at).label);
            at = tree.node(at).parent;
        }
        path.reverse();
        self.path = path;
    }

    /// Handles a key. `window` is the live one.
    pub(super) fn key(&mut self, key: KeyEvent, window: &Window) -> Next {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && matches!(key.code, KeyCode::Char('c')) {
            return Next::Quit;
        }
        if self.typing {
            self.type_key(key.code, window);
            return Next::Stay;
        }
        if std::mem::take(&mut self.help) {
            return Next::Stay;
        }
        match key.code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('d') if control => self.step(PAGE),
            KeyCode::Char('u') if control => self.step(-PAGE),
            KeyCode::PageDown => self.step(PAGE),
            KeyCode::PageUp => self.step(-PAGE),
            KeyCode::Char('j') | KeyCode::Down => self.step(1),
            KeyCode::Char('k') | KeyCode::Up => self.step(-1),
            KeyCode::Char('h') | KeyCode::Left => self.sideways(-1),
            KeyCode::Char('l') | KeyCode::Right => self.sideways(1),
            KeyCode::Char('g') | KeyCode::Home => self.step(isize::MIN),
            KeyCode::Char('G') | KeyCode::End => self.step(isize::MAX),
            KeyCode::Tab => self.mode = if self.mode == Mode::Table { Mode::Flame } else { Mode::Table },
            KeyCode::Enter => self.zoom_in(),
            KeyCode::Esc => self.back(),
            KeyCode::Char('/') => {
                self.typing = true;
                self.pattern.clear();
            }
            KeyCode::Char('n') => self.find(1, window),
            KeyCode::Char('N') => self.find(-1, window),
            KeyCode::Char('e') => self.event = (self.event + 1) % self.measures.len().max(1) as u8,
            KeyCode::Char('s') => self.by_total = !self.by_total,
            KeyCode::Char('z') => {
                self.frozen = if self.frozen.is_some() { None } else { Some(window.clone()) };
            }
            KeyCode::Char('?') => self.help = true,
            _ => {}
        }
        self.refresh(window);
        Next::Stay
    }

    fn type_key(&mut self, code: KeyCode, window: &Window) {
        match code {
            KeyCode::Enter => {
                self.typing = false;
                self.find(0, window);
            }
            KeyCode::Esc => {
                self.typing = false;
                self.pattern.clear();
            }
            KeyCode::Backspace => {
                self.pattern.pop();
            }
            KeyCode::Char(c) => self.pattern.push(c),
            _ => {}
        }
    }

    fn step(&mut self, by: isize) {
        if self.mode == Mode::Table {
            let last = self.picture.rows.len().saturating_sub(1);
            let index = self.selected().saturating_add_signed(by).min(last);
            self.row = self.picture.rows.get(index).map(|row| row.label);
            return;
        }
        let Some(tree) = &self.picture.tree else { return };
        let mut node = self.node();
        for _ in 0..by.unsigned_abs().min(tree.nodes.len()) {
            node = if by > 0 {
                tree.children(node).first().copied().unwrap_or(node)
            } else {
                tree.node(node).parent
            };
        }
        self.select_node(node);
    }

    /// Moves to the neighbour: the next sibling, or a node of the same depth under the parent's neighbour.
    fn sideways(&mut self, by: isize) {
        let Some(tree) = &self.picture.tree else { return };
        if self.mode == Mode::Table {
            return;
        }
        let node = self.node();
        let siblings = tree.children(tree.node(node).parent);
        let index = siblings.iter().position(|&sibling| sibling == node).unwrap_or(0);
        if let Some(&next) = index.checked_add_signed(by).and_then(|index| siblings.get(index)) {
            self.select_node(next);
        }
    }

    fn zoom_in(&mut self) {
        let label = match self.mode {
            Mode::Table => self.picture.rows.get(self.selected()).map(|row| row.label),
            Mode::Flame => self.path.last().copied(),
        };
        let Some(label) = label.filter(|label| self.zoom.last() != Some(label)) else { return };
        self.zoom.push(label);
        self.path = vec![label];
        self.row = Some(label);
    }

    /// Ends the search, or else the innermost zoom.
    fn back(&mut self) {
        if !self.pattern.is_empty() {
            self.pattern.clear();
        } else if let Some(label) = self.zoom.pop() {
            self.row = Some(label);
            self.path.clear();
        }
    }

    /// Selects the next (`by` 1) or previous (-1) match; with 0, the selection itself if it matches, else the next.
    fn find(&mut self, by: isize, window: &Window) {
        let shown = self.frozen.as_ref().unwrap_or(window);
        if self.mode == Mode::Table {
            let hits = (0..self.picture.rows.len())
                .filter(|&index| self.matches(shown.text(self.picture.rows[index].label)));
            if let Some(index) = next_of(&hits.collect::<Vec<_>>(), self.selected(), by) {
                self.row = Some(self.picture.rows[index].label);
            }
            return;
        }
        let Some(tree) = &self.picture.tree else { return };
        let order = depth_first(tree);
        let hits: Vec<usize> = (0..order.len())
            .filter(|&index| order[index] != 0 && self.matches(shown.text(tree.node(order[index]).label)))
            .collect();
        let at: HashMap<u32, usize> = order.iter().enumerate().map(|(index, &node)| (node, index)).collect();
        if let Some(index) = next_of(&hits, at[&self.node()], by) {
            self.select_node(order[index]);
        }
    }
}

/// The hit after (`by` 1) or before (-1) `at`, wrapping around; with 0, also `at` itself.
fn next_of(hits: &[usize], at: usize, by: isize) -> Option<usize> {
    let after = |from: usize| hits.iter().copied().find(|&hit| hit >= from).or(hits.first().copied());
    match by {
        0 => after(at),
        1.. => after(at + 1),
        _ => hits.iter().copied().rev().find(|&hit| hit < at).or(hits.last().copied()),
    }
}

/// All nodes in pre-order, heaviest child first.
fn depth_first(tree: &CallTree) -> Vec<u32> {
    let mut order = Vec::with_capacity(tree.nodes.len());
    let mut pending = vec![0];
    while let Some(node) = pending.pop() {
        order.push(node);
        pending.extend(tree.children(node).iter().rev());
    }
    order
}
