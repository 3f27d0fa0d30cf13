//! The comparison as a table.

use std::cmp::Ordering;

use selfwind_profile::digits::{counted, grouped};
use selfwind_profile::selection::Unit;

use super::comparison::{Change, Comparison, Side};
use super::options::{DiffOptions, Sort};
use crate::terminal::columns::wrapped;
use crate::terminal::screen::{Screen, Style, fit, printable};
use crate::terminal::short_name::short_name;

/// Rows if the output is not a terminal.
const PIPE_ROWS: usize = 40;
/// Rows on the smallest terminals.
const FEWEST_ROWS: usize = 5;
/// Lines besides the rows: two sides, their ratio, filters, a blank one, the heading, a remark, the prompt.
const OTHER_LINES: usize = 8;
/// Smallest change shown by default, in percent.
const THRESHOLD: f64 = 0.1;
/// Maximum width of the module column.
const MODULE_WIDTH: usize = 24;
/// Columns before a name: two shares, the change, the mark, the other change.
const NUMBERS_WIDTH: usize = 36;
/// Width of an amount, and of all columns before a name.
const AMOUNT_WIDTH: usize = 14;
const AMOUNTS_WIDTH: usize = 4 * (AMOUNT_WIDTH + 1) + 2;

/// The changes of at least `percent`, in self or in total.
pub(super) fn above(changes: &[Change], percent: f64) -> Vec<&Change> {
    let least = percent / 100.0;
    changes.iter().filter(|change| change.own.abs() >= least || change.total.abs() >= least).collect()
}

/// Renders the table.
pub(super) fn render(comparison: &Comparison<'_>, options: &DiffOptions, screen: Screen) -> String {
    let Comparison { a, b, changes } = comparison;
    let mut text = String::new();
    let mut line = |line: &str| {
        text.push_str(line.trim_end());
        text.push('\n');
    };
    let width = a.name.chars().count().max(b.name.chars().count()).min(screen.width / 2);
    for (side, mark) in [(a, "A"), (b, "B")] {
        let name = fit(&printable(&side.name), width).into_owned();
        let profile = side.selection.profile();
        let facts = format!(
            "{mark}  {name:<width$}  {} samples  weight {}{}  {:.2} s  {}",
            grouped(side.samples()),
            grouped(side.weight()),
            side.amount.as_ref().map_or_else(String::new, |a| format!(" ({} {})", a.text(), a.unit)),
            profile.stats.detail.duration_ns as f64 / 1e9,
            printable(&profile.session.command.join(" ")),
        );
        line(&fit(&facts, screen.width));
        for remark in profile.incomplete.iter().flat_map(|remark| wrapped(remark, screen.width)) {
            line(&remark);
        }
    }
    if let (Some(ratio), Some(amount)) = (comparison.ratio(), &a.amount) {
        line(&fit(&amount.compared(ratio), screen.width));
    }
    let filters = options.filters.flags();
    if !filters.is_empty() {
        line(&fit(&format!("only {filters}"), screen.width));
    }
    let all = above(changes, options.threshold.unwrap_or(THRESHOLD));
    let rows = match (options.limit, screen.height) {
        (Some(0), _) => usize::MAX,
        (Some(limit), _) => limit,
        (None, None) => PIPE_ROWS,
        (None, Some(height)) => height.saturating_sub(OTHER_LINES).max(FEWEST_ROWS),
    };
    let shown = &all[..all.len().min(rows)];
    line("");
    for row in table(a, b, shown, options, screen) {
        line(&row);
    }
    if shown.is_empty() {
        let remark = "No function changed by that much; --threshold 0 shows all.";
        wrapped(remark, screen.width).iter().for_each(|remark| line(remark));
    }
    let hidden = changes.len() - shown.len();
    if hidden > 0 {
        let marked = changes.iter().filter(|change| change.significant).count();
        let more = counted(hidden as u64, "more function", "more functions");
        let remark = format!(
            "… {more}, {marked} in all marked * (more than chance); --limit 0 --threshold 0 shows all"
        );
        let remark = fit(&remark, screen.width).into_owned();
        line(&screen.paint(Style::Dim, &remark));
    }
    text
}

fn table(a: &Side<'_>, b: &Side<'_>, rows: &[&Change], options: &DiffOptions, screen: Screen) -> Vec<String> {
    let widest = rows.iter().map(|change| change.module.chars().count()).max().unwrap_or(0);
    let module_width = widest.clamp("MODULE".len(), MODULE_WIDTH.min(screen.width / 4));
    let numbers_width = if a.is_level() { AMOUNTS_WIDTH } else { NUMBERS_WIDTH };
    let room = screen.width.saturating_sub(numbers_width + module_width + 2);
    let longest = rows.iter().map(|change| change.name.chars().count()).max().unwrap_or(0);
    let name_width = longest.clamp("FUNCTION".len(), room.max("FUNCTION".len()));
    let (first, second) = match options.sort {
        Sort::Own => ("SELF", "TOTAL"),
        Sort::Total => ("TOTAL", "SELF"),
    };
    let (what, of) = match options.unit {
        Unit::Function => ("FUNCTION", "MODULE"),
        Unit::Line => ("LINE", "MODULE"),
        Unit::Module => ("MODULE", ""),
    };
    let (first_a, first_b) = (format!("{first} A"), format!("{first} B"));
    let numbers = match a.is_level() {
        true => format!(
            "{first_a:>AMOUNT_WIDTH$} {first_b:>AMOUNT_WIDTH$} {:>AMOUNT_WIDTH$}  {second:>AMOUNT_WIDTH$}",
            "GROWTH"
        ),
        false => format!("{first_a:>7} {first_b:>7}  CHANGE    {second:>6}"),
    };
    let heading = format!("{numbers}  {what:<name_width$}  {of}");
    let mut lines = vec![screen.paint(Style::Bold, &fit(&heading, screen.width)).into_owned()];
    for change in rows {
        let name = short_name(&printable(&change.name), name_width).into_owned();
        let module = fit(&printable(&change.module), module_width).into_owned();
        let (in_a, in_b, here, there) = match options.sort {
            Sort::Own => (change.a.own, change.b.own, change.own, change.total),
            Sort::Total => (change.a.total, change.b.total, change.total, change.own),
        };
        let elsewhere = match options.sort {
            Sort::Own => growth(change.a.total, change.b.total),
            Sort::Total => growth(change.a.own, change.b.own),
        };
        let style = match (change.significant, here > 0.0) {
            (false, _) => Style::Plain,
            (true, true) => Style::Hot,
            (true, false) => Style::Good,
        };
        let mark = if change.significant { "*" } else { " " };
        let numbers = if a.is_level() {
            let change = format!("{:>AMOUNT_WIDTH$}{mark}", growth(in_a, in_b));
            let (in_a, in_b) = (grouped(in_a), grouped(in_b));
            let change = screen.paint(style, &change);
            format!("{in_a:>AMOUNT_WIDTH$} {in_b:>AMOUNT_WIDTH$} {change} {elsewhere:>AMOUNT_WIDTH$}")
        } else {
            let change = format!("{:>+7.1}%{mark}", here * 100.0);
            let change = screen.paint(style, &change);
            format!("{} {} {change} {:>+7.1}%", share(a.share(in_a)), share(b.share(in_b)), there * 100.0)
        };
        lines.push(format!("{numbers}  {name:<name_width$}  {}", screen.paint(Style::Dim, &module)));
    }
    lines
}

/// The growth of an amount, with its sign.
fn growth(a: u64, b: u64) -> String {
    let sign = match a.cmp(&b) {
        Ordering::Less => "+",
        Ordering::Equal => "",
        Ordering::Greater => "-",
    };
    format!("{sign}{}", grouped(a.abs_diff(b)))
}

/// A share, seven columns wide; empty for none.
fn share(share: f64) -> String {
    if share == 0.0 { " ".repeat(7) } else { format!("{:>6.1}%", share * 100.0) }
}
