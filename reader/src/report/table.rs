//! The table of functions, lines, modules, threads or processes.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use selfwind_profile::call_tree::{Stacks, weights};
use selfwind_profile::digits::counted;
use selfwind_profile::selection::{Label, Selection, named};

use super::options::{ReportOptions, Rows, Sort, View};
use super::text::Page;
use crate::terminal::screen::{Style, fit, printable};
use crate::terminal::short_name::short_name;

/// Maximum width of the module column.
const MODULE_WIDTH: usize = 24;
/// Columns before a name: two percentages, or one.
const NUMBERS_WIDTH: usize = 17;
const NUMBER_WIDTH: usize = 9;
/// Marks a name whose frames were mostly guessed.
pub(super) const GUESSED: &str = " ?";

/// True if more than half was guessed.
pub(super) fn is_guess(guessed: u64, total: u64) -> bool {
    guessed * 2 > total
}

/// A row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) own: u64,
    pub(super) total: u64,
    /// The part of `total` whose frame was guessed.
    pub(super) guessed: u64,
    /// The label, if the row is an element of stacks.
    pub(super) label: Option<u32>,
    pub(super) name: String,
    pub(super) module: String,
}

/// All rows with a weight, sorted.
pub(super) fn rows(selection: &Selection<'_>, options: &ReportOptions) -> Vec<Row> {
    let mut rows = match options.rows {
        Rows::Elements => elements(selection),
        Rows::Threads => threads(selection),
        Rows::Processes => processes(selection),
        Rows::Values => values(selection),
    };
    rows.retain(|row| match (options.rows, options.view) {
        (Rows::Elements, View::NoChildren) => row.own > 0,
        _ => row.total > 0,
    });
    rows.sort_by(|a, b| {
        let by_own = (b.own, b.total).cmp(&(a.own, a.total));
        let order = match options.order() {
            Sort::Own => by_own,
            Sort::Total => (b.total, b.own).cmp(&(a.total, a.own)),
            Sort::Name => a.name.cmp(&b.name),
            Sort::Module => a.module.cmp(&b.module).then(by_own),
        };
        order
            .then_with(|| a.name.cmp(&b.name))
            .then_with(|| a.module.cmp(&b.module))
            .then(a.label.cmp(&b.label))
    });
    rows
}

fn elements(selection: &Selection<'_>) -> Vec<Row> {
    let profile = selection.profile();
    let weights = weights(selection);
    let row = |(label, weight): (usize, &selfwind_profile::call_tree::Weight)| {
        let label = label as u32;
        let module = match *selection.label(label) {
            Label::Function(function) | Label::Line(function, ..) => profile.module_name(function),
            Label::Module(_) | Label::Mark(_) => String::new(),
            Label::Processes(_) | Label::Thread(_) | Label::Value => return None,
        };
        let name = selection.text(label).to_owned();
        let (own, total, guessed) = (weight.own, weight.total, weight.guessed);
        Some(Row { own, total, guessed, label: Some(label), name, module })
    };
    weights.iter().enumerate().filter_map(row).collect()
}

fn threads(selection: &Selection<'_>) -> Vec<Row> {
    let profile = selection.profile();
    let row = |(index, _, weight): (u32, u64, u64)| {
        let thread = &profile.threads[index as usize];
        let process = &profile.processes[thread.process as usize];
        let name = process.name();
        let text = format!("{} {}", named(&thread.name, &name), thread.tid);
        let module = format!("{name} {}", process.info.pid);
        Row { own: weight, total: weight, guessed: 0, label: None, name: text, module }
    };
    selection.threads().into_iter().map(row).collect()
}

fn processes(selection: &Selection<'_>) -> Vec<Row> {
    let profile = selection.profile();
    let mut sums: BTreeMap<(u32, String), u64> = BTreeMap::new();
    for (thread, _, weight) in selection.threads() {
        let process = profile.process_of(thread);
        *sums.entry((process.info.pid, process.name())).or_default() += weight;
    }
    let row = |((pid, name), weight)| Row {
        own: weight,
        total: weight,
        guessed: 0,
        label: None,
        name: format!("{name} {pid}"),
        module: String::new(),
    };
    let mut rows: Vec<Row> = sums.into_iter().map(row).collect();
    rows.sort_by_key(|row| Reverse(row.own));
    rows
}

fn values(selection: &Selection<'_>) -> Vec<Row> {
    let row = |(label, weight): (u32, u64)| Row {
        own: weight,
        total: weight,
        guessed: 0,
        label: None,
        name: selection.text(label).to_owned(),
        module: String::new(),
    };
    selection.by_heading().into_iter().map(row).collect()
}

impl Page<'_> {
    pub(super) fn table(&mut self, selection: &Selection<'_>, options: &ReportOptions, limit: usize) {
        let all = rows(selection, options);
        let shown = &all[..all.len().min(limit)];
        let (one, many, what, of) = match (options.rows, options.unit) {
            (Rows::Threads, _) => ("thread", "threads", "THREAD", "PROCESS"),
            (Rows::Processes, _) => ("process", "processes", "PROCESS", ""),
            (Rows::Values, _) => ("value", "values", "VALUE", ""),
            (_, selfwind_profile::selection::Unit::Function) => {
                ("function", "functions", "FUNCTION", "MODULE")
            }
            (_, selfwind_profile::selection::Unit::Line) => ("line", "lines", "LINE", "MODULE"),
            (_, selfwind_profile::selection::Unit::Module) => ("module", "modules", "MODULE", ""),
        };
        let single = options.rows != Rows::Elements || options.view == View::NoChildren;
        let heading = match (single, options.rows) {
            (true, Rows::Elements) => "   SELF  ",
            (true, _) => "  TOTAL  ",
            (false, _) => "   SELF   TOTAL  ",
        };
        let widest = shown.iter().map(|row| row.module.chars().count()).max().unwrap_or(0);
        let module_width = widest.clamp(of.len(), MODULE_WIDTH.min(self.screen.width / 4));
        let numbers = if single { NUMBER_WIDTH } else { NUMBERS_WIDTH };
        let room = self.screen.width.saturating_sub(numbers + module_width + 2);
        let marked = |row: &Row| if is_guess(row.guessed, row.total) { GUESSED } else { "" };
        let longest = shown.iter().map(|row| row.name.chars().count() + marked(row).len()).max();
        let name_width = longest.unwrap_or(0).clamp(what.len(), room.max(what.len()));
        self.heading(&format!("{heading}{what:<name_width$}  {of}"));
        for row in shown {
            let mark = marked(row);
            let name = format!("{}{mark}", short_name(&printable(&row.name), name_width - mark.len()));
            let module = fit(&printable(&row.module), module_width).into_owned();
            let module = self.screen.paint(Style::Dim, &module).into_owned();
            let own = self.share(row.own);
            let numbers = if single { own } else { format!("{own} {}", self.share(row.total)) };
            self.line(&format!("{numbers}  {name:<name_width$}  {module}"));
        }
        if all.len() > shown.len() {
            let hidden = (all.len() - shown.len()) as u64;
            let rest = self.percent(all[shown.len()..].iter().map(|row| row.own).sum());
            let hidden = counted(hidden, &format!("more {one}"), &format!("more {many}"));
            self.remark(&format!("… {hidden} with {rest:.1}% of self; --limit 0 shows all"));
        }
    }
}
