//! The flags of `diff`.

use std::path::PathBuf;

use clap::Args;

use super::gate::Gate;
use super::options::{DiffOptions, Form, Sort};
use crate::flags::event::EventArgs;
use crate::flags::selection::{FilterArgs, UnitArgs};
use crate::flags::symbols::SymbolArgs;

const EXAMPLES: &str = "Examples:
  selfwind diff before.data after.data
  selfwind diff selfwind.data.old selfwind.data --sort total
  selfwind diff -o diff.svg before.data after.data          a differential flame graph
  selfwind diff --folded before.data after.data | flamegraph.pl > diff.svg

  selfwind diff --fail-if 'total>5%' --fail-if 'self(^parse$)>2%' before.data after.data

--fail-if 'total>P%': B used over P % more than A (CPU time, or what was recorded). 'self(REGEX)>P%': the self share \
of a matching function grew by more than P percentage points, and significantly (p < 0.05); \
'total(REGEX)>P%': the same for its total (inclusive) share.

Exit status: 0; 1 if a --fail-if condition is met; 2 if the comparison fails.

Shares of the weight are compared, so the recordings may differ in length. `*` marks significant \
changes: by a two-proportion z-test of the shares, with at most 5% false positives expected among them.";

/// The flags of `diff`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DiffArgs {
    /// Sort by the change in self time or in total (inclusive) time
    #[arg(long, value_name = "ORDER", default_value = "self")]
    sort: Sort,
    #[command(flatten)]
    unit: UnitArgs,
    #[command(flatten)]
    filters: FilterArgs,
    #[command(flatten)]
    event: EventArgs,
    /// Smallest change to show, in percent of the total [default: 0.1; in JSON 0]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    threshold: Option<f64>,
    /// Number of rows; 0 for all [default: as many as fit the terminal]
    #[arg(long, value_name = "ROWS")]
    limit: Option<usize>,
    /// Print one JSON object
    #[arg(long, conflicts_with = "folded")]
    json: bool,
    /// Print one line per stack, `STACK A B`, with the weights of A scaled to those of B
    #[arg(long)]
    folded: bool,
    /// Exit with status 1 if this has grown by more: total>5%, self(REGEX)>2%, total(REGEX)>2%; may be repeated
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<Gate>,
    /// Output file; .svg gives a flame graph of B coloured by the change, .folded the output of --folded
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    symbols: SymbolArgs,
    /// Profile before
    #[arg(value_name = "A")]
    pub(crate) a: PathBuf,
    /// Profile after
    #[arg(value_name = "B")]
    pub(crate) b: PathBuf,
}

fn percent(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("invalid percentage `{text}`: expected a number"))?;
    if (0.0..=100.0).contains(&value) {
        Ok(value)
    } else {
        Err(format!("invalid percentage `{text}`: expected 0 to 100"))
    }
}

impl From<&DiffArgs> for DiffOptions {
    fn from(args: &DiffArgs) -> Self {
        let extension = args.output.as_ref().and_then(|path| path.extension()).and_then(|e| e.to_str());
        let form = match (args.json, args.folded, extension) {
            (true, ..) => Form::Json,
            (_, true, _) => Form::Folded,
            (.., Some("json")) => Form::Json,
            (.., Some("svg")) => Form::Flamegraph,
            (.., Some("folded")) => Form::Folded,
            _ => Form::Text,
        };
        Self {
            form,
            sort: args.sort,
            unit: args.unit.into(),
            filters: (&args.filters).into(),
            event: args.event.name().map(str::to_owned),
            threshold: args.threshold,
            limit: args.limit,
            gates: args.fail_if.clone(),
            output: args.output.clone().filter(|path| path.as_os_str() != "-"),
            sources: (&args.symbols).into(),
        }
    }
}
