//! What a report shows, whichever form it has.

use selfwind_profile::selection::{Filters, Heading, Unit};
use selfwind_profile::symbolize::SymbolSources;

/// Stands for the tracepoint itself in place of a field's name.
pub(super) const EVENT: &str = "event";

/// What a report focuses on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum View {
    /// Functions by self weight, with their totals; the call tree.
    #[default]
    Both,
    /// Functions by total (inclusive) weight (`--children`).
    Children,
    /// Functions by self weight only (`--no-children`); the callers of the hottest functions.
    NoChildren,
}

/// How the table is ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// By self time
    #[value(name = "self")]
    Own,
    /// By total (inclusive) time
    Total,
    /// By name
    Name,
    /// By binary, then by self time
    Module,
}

/// What the rows of the table are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Rows {
    /// The elements of stacks: functions, lines or modules.
    #[default]
    Elements,
    /// Threads, each with its own tree.
    Threads,
    /// Processes, each with its own tree.
    Processes,
    /// Values of an event's field, or events, each with its own tree.
    Values,
}

/// What `report` shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReportOptions {
    /// What to focus on.
    pub(crate) view: View,
    /// What the elements of stacks are.
    pub(crate) unit: Unit,
    /// What the rows of the table are.
    pub(crate) rows: Rows,
    /// The field whose values are the rows, or [`EVENT`].
    pub(crate) by: Option<String>,
    /// The order of the table. None: as `view` implies.
    pub(crate) sort: Option<Sort>,
    /// Only the table.
    pub(crate) flat: bool,
    /// Which stacks to show.
    pub(crate) filters: Filters,
    /// Which event to show; none: the main one.
    pub(crate) event: Option<String>,
    /// Only stacks whose two walks differ (`--unwind both`).
    pub(crate) differences: bool,
    /// JSON instead of text.
    pub(crate) json: bool,
    /// Maximum number of rows in the table, and in the tree. None: as many as fit the screen; 0: all.
    pub(crate) limit: Option<usize>,
    /// Where separate debug files are.
    pub(crate) sources: SymbolSources,
}

impl ReportOptions {
    /// What is added above the roots; `otherwise` if the rows do not imply anything.
    pub(super) fn heading(&self, otherwise: Heading) -> Heading {
        match self.rows {
            Rows::Threads => Heading::Threads,
            Rows::Processes => Heading::Processes,
            Rows::Values => Heading::Values,
            Rows::Elements => otherwise,
        }
    }

    pub(super) fn order(&self) -> Sort {
        self.sort.unwrap_or(if self.view == View::Children { Sort::Total } else { Sort::Own })
    }
}
