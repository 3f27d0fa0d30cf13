//! The comparison as one JSON object.

use std::io::{self, Write};

use serde::Serialize;

use super::text::above;
use super::{Change, DiffOptions, Side, Weighed};

#[derive(Serialize)]
struct Comparison<'a> {
    a: Totals<'a>,
    b: Totals<'a>,
    filters: String,
    functions: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Totals<'a> {
    file: &'a str,
    samples: u64,
    weight: u64,
}

#[derive(Serialize)]
struct Row<'a> {
    function: &'a str,
    module: &'a str,
    a: Weights,
    b: Weights,
    /// Shares of B minus shares of A, in percent of everything.
    self_change: f64,
    total_change: f64,
    /// Probability that chance alone makes such a change.
    self_p: f64,
    total_p: f64,
    significant: bool,
}

#[derive(Serialize)]
struct Weights {
    #[serde(rename = "self")]
    own: u64,
    total: u64,
    self_percent: f64,
    total_percent: f64,
}

/// Writes all changes down to the threshold.
pub(super) fn write<'a>(
    a: &'a Side<'_>,
    b: &'a Side<'_>,
    changes: &'a [Change],
    options: &DiffOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let weights = |side: &Side<'_>, weighed: Weighed| Weights {
        own: weighed.own,
        total: weighed.total,
        self_percent: side.share(weighed.own) * 100.0,
        total_percent: side.share(weighed.total) * 100.0,
    };
    let row = |change: &'a Change| Row {
        function: &change.name,
        module: &change.module,
        a: weights(a, change.a),
        b: weights(b, change.b),
        self_change: change.own * 100.0,
        total_change: change.total * 100.0,
        self_p: change.p_own,
        total_p: change.p_total,
        significant: change.significant,
    };
    let limit = options.limit.filter(|&limit| limit > 0).unwrap_or(usize::MAX);
    let shown = above(changes, options.threshold.unwrap_or(0.0)).into_iter().take(limit);
    let functions = shown.map(row).collect();
    let totals =
        |side: &'a Side<'_>| Totals { file: &side.name, samples: side.samples(), weight: side.weight() };
    let (in_a, in_b) = (totals(a), totals(b));
    let comparison = Comparison { a: in_a, b: in_b, filters: options.filters.flags(), functions };
    serde_json::to_writer_pretty(&mut *out, &comparison)?;
    out.write_all(b"\n")
}
