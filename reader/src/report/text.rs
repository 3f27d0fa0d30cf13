//! The report as text: a header, the table, the call tree, notes.

use selfwind_profile::heap::HeapValue;
use selfwind_profile::locks::LockValue;
use selfwind_profile::mapped_memory;
use selfwind_profile::profile::Profile;
use selfwind_profile::selection::{Heading, Selection};

use super::options::{ReportOptions, View};
use crate::terminal::screen::{Screen, Style, fit};

/// Rows of the table and of the tree if the output is not a terminal.
const PIPE_ROWS: usize = 40;
/// Rows of the table and of the tree on the smallest terminals.
const FEWEST_ROWS: usize = 5;

/// Renders a report.
pub(super) fn render(profile: &Profile, name: &str, options: &ReportOptions, screen: Screen) -> String {
    let otherwise = if options.view == View::NoChildren { Heading::None } else { Heading::ProgramsIfSeveral };
    let selection = Selection::new(profile, options.unit, options.heading(otherwise), &options.filters);
    let filters = options.filters.flags();
    let mut page = Page { profile, screen, whole: selection.weight(), text: String::new() };
    page.header(name, &filters);
    let footer = page.footer_lines();
    if profile.totals.weight == 0 {
        page.line(nothing(profile));
    } else if selection.weight() == 0 {
        page.line(&format!("Nothing matches {filters}; run `selfwind report` without it to see everything."));
    } else {
        let rows = page.rows(options, footer.len());
        page.table(&selection, options, rows.0);
        if !options.flat {
            page.tree(&selection, options.view, rows.1);
            page.waits(options.limit);
        }
    }
    page.footer(&footer);
    page.text
}

/// The reason why there is nothing to show.
fn nothing(profile: &Profile) -> &'static str {
    if !profile.stats.detail.complete {
        return match profile.measure(profile.main).is_level() {
            true => "It is not known what was in use: the recording was interrupted.",
            false => "No samples: none were written before the recording was interrupted.",
        };
    }
    let heap = HeapValue::ALL.iter().find(|value| value.name() == profile.measure(profile.main).name);
    if LockValue::ALL.iter().any(|value| value.name() == profile.measure(profile.main).name) {
        return "No samples: no thread waited long for a lock, or none of the processes ran the agent.";
    }
    if let Some(value) = mapped_memory::value(&profile.measure(profile.main).name) {
        return match value {
            HeapValue::InuseObjects | HeapValue::InuseSpace => {
                "No memory was mapped at the end: none ever was, or all of it had been unmapped."
            }
            _ => "No samples: the program mapped no memory itself, or none of the processes ran the agent.",
        };
    }
    match heap {
        Some(HeapValue::InuseObjects | HeapValue::InuseSpace)
            if profile
                .other_events()
                .any(|other| other.event == HeapValue::AllocObjects.name() && other.weight > 0) =>
        {
            "No sampled memory was in use at the end: all of it had been freed."
        }
        Some(_) => {
            "No samples: too little memory was allocated for one, or none of the processes ran the agent."
        }
        None => "No samples: the program used too little CPU time, or none of its processes ran the agent.",
    }
}

/// A report being written.
pub(super) struct Page<'a> {
    pub(super) profile: &'a Profile,
    pub(super) screen: Screen,
    /// The weight that is 100 %.
    pub(super) whole: u64,
    pub(super) text: String,
}

impl Page<'_> {
    pub(super) fn line(&mut self, text: &str) {
        self.text.push_str(text.trim_end());
        self.text.push('\n');
    }

    pub(super) fn percent(&self, weight: u64) -> f64 {
        weight as f64 * 100.0 / self.whole.max(1) as f64
    }

    /// A share, seven columns wide; empty for none.
    pub(super) fn share(&self, weight: u64) -> String {
        if weight == 0 {
            return " ".repeat(7);
        }
        let percent = self.percent(weight);
        let text = format!("{percent:>6.1}%");
        self.screen.paint(Style::of_share(percent), &text).into_owned()
    }

    pub(super) fn heading(&mut self, text: &str) {
        let heading = self.screen.paint(Style::Bold, &fit(text, self.screen.width)).into_owned();
        self.text.push('\n');
        self.line(&heading);
    }

    pub(super) fn remark(&mut self, text: &str) {
        let text = fit(text, self.screen.width).into_owned();
        let text = self.screen.paint(Style::Dim, &text).into_owned();
        self.line(&text);
    }

    /// Rows for the table and for the tree.
    fn rows(&self, options: &ReportOptions, footer: usize) -> (usize, usize) {
        match (options.limit, self.screen.height) {
            (Some(0), _) => (usize::MAX, usize::MAX),
            (Some(limit), _) => (limit, limit),
            (None, None) => (PIPE_ROWS, PIPE_ROWS),
            (None, Some(height)) => {
                // The header so far, two headings, a remark, three empty lines, the prompt.
                let taken = self.text.lines().count() + 7 + footer;
                let left = height.saturating_sub(taken);
                if options.flat {
                    return (left.max(FEWEST_ROWS), 0);
                }
                let table = (left * 2 / 5).max(FEWEST_ROWS);
                (table, left.saturating_sub(table).max(FEWEST_ROWS))
            }
        }
    }
}
