//! What a comparison shows, and when it fails.

use std::path::PathBuf;

use selfwind_profile::selection::{Filters, Unit};
use selfwind_profile::symbolize::SymbolSources;

use super::gate::Gate;

/// How a comparison is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A table.
    Text,
    /// One JSON object.
    Json,
    /// `STACK WEIGHT_A WEIGHT_B` lines, the input of differential flame graphs.
    Folded,
    /// A differential flame graph as SVG.
    Flamegraph,
}

/// How functions are ordered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// By the change in self time
    #[default]
    #[value(name = "self")]
    Own,
    /// By the change in total (inclusive) time
    Total,
}

/// What `diff` shows.
#[derive(Debug, Clone)]
pub(crate) struct DiffOptions {
    /// The form.
    pub(super) form: Form,
    /// The order.
    pub(crate) sort: Sort,
    /// Functions, lines or modules.
    pub(crate) unit: Unit,
    /// Which stacks of both to compare.
    pub(crate) filters: Filters,
    /// Which event of both to compare; none: the main one.
    pub(crate) event: Option<String>,
    /// Smallest change to show, in percent of the total. None: 0.1 in the table, 0 in JSON.
    pub(super) threshold: Option<f64>,
    /// Maximum number of rows; none: as many as fit the screen; 0: all.
    pub(crate) limit: Option<usize>,
    /// Conditions under which the comparison fails.
    pub(super) gates: Vec<Gate>,
    /// Where to write; none: standard output.
    pub(crate) output: Option<PathBuf>,
    /// Where to look up names.
    pub(crate) sources: SymbolSources,
}
