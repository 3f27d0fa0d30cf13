//! The comparison as one JSON object.

use std::io::{self, Write};

use serde::Serialize;

use super::comparison::{Change, Comparison, Side, Weighed};
use super::options::DiffOptions;
use super::text::above;

#[derive(Serialize)]
struct Document<'a> {
    a: Totals<'a>,
    b: Totals<'a>,
    /// Amount of B divided by that of A, if both are known.
    ratio: Option<f64>,
    filters: String,
    functions: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Totals<'a> {
    file: &'a str,
    samples: u64,
    weight: u64,
    /// The amount in seconds or events; null if it is not known.
    amount: Option<f64>,
    unit: Option<&'a str>,
}

#[derive(Serialize)]
struct Row<'a> {
    function: &'a str,
    module: &'a str,
    a: Weights,
    b: Weights,
    /// Shares of B minus shares of A, in percent of the total.
    self_change: f64,
    total_change: f64,
    /// For memory in use: B minus A, in units of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    self_growth: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_growth: Option<i64>,
    /// The p-value of the change.
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
    comparison: &'a Comparison<'_>,
    options: &DiffOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let Comparison { a, b, changes } = comparison;
    let weights = |side: &Side<'_>, weighed: Weighed| Weights {
        own: weighed.own,
        total: weighed.total,
        self_percent: side.share(weighed.own) * 100.0,
        total_percent: side.share(weighed.total) * 100.0,
    };
    let growth = |a_has: u64, b_has: u64| a.is_level().then(|| b_has.wrapping_sub(a_has) as i64);
    let row = |change: &'a Change| Row {
        function: &change.name,
        module: &change.module,
        a: weights(a, change.a),
        b: weights(b, change.b),
        self_change: change.own * 100.0,
        total_change: change.total * 100.0,
        self_growth: growth(change.a.own, change.b.own),
        total_growth: growth(change.a.total, change.b.total),
        self_p: change.p_own,
        total_p: change.p_total,
        significant: change.significant,
    };
    let limit = options.limit.filter(|&limit| limit > 0).unwrap_or(usize::MAX);
    let shown = above(changes, options.threshold.unwrap_or(0.0)).into_iter().take(limit);
    let functions = shown.map(row).collect();
    let totals = |side: &'a Side<'_>| Totals {
        file: &side.name,
        samples: side.samples(),
        weight: side.weight(),
        amount: side.amount.as_ref().map(|amount| amount.value),
        unit: side
            .amount
            .as_ref()
            .map(|amount| if amount.seconds { "seconds" } else { amount.unit.as_str() }),
    };
    let (in_a, in_b) = (totals(a), totals(b));
    let filters = options.filters.flags();
    let document = Document { a: in_a, b: in_b, ratio: comparison.ratio(), filters, functions };
    serde_json::to_writer_pretty(&mut *out, &document)?;
    out.write_all(b"\n")
}
