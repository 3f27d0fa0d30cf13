//! The flags of `report`.

use std::path::PathBuf;

use clap::Args;
use selfwind_profile::heap::HeapValue;

use super::{ReportOptions, Rows, Sort, View};
use crate::flags::selection::{FilterArgs, UnitArgs};
use crate::flags::symbols::SymbolArgs;
use crate::flags::value::ValueArgs;

const EXAMPLES: &str = "Examples:
  selfwind report                        the profile selfwind.data
  selfwind report --limit 0 job.data     everything, however long
  selfwind report --sort total           functions only, with what they call
  selfwind report --threads              who used it
  selfwind report --lines --symbol parse which lines, on the stacks through `parse`
  selfwind report --root '^main$'        stacks from `main` on
  selfwind report --leaks                what nobody had freed at the end (record -e alloc)
  selfwind report --differences          where copies of stacks gave other frames (record --unwind both)
  selfwind report --json job.data | jq '.functions[:5]'

SELF is what a function itself used, TOTAL what it used with all it called. A line of the tree is a chain
of calls that does not branch; TOTAL is that of its first function, SELF that of its last. `?` marks frames
that were guessed from the contents of the stack, `↻` functions that call themselves: the tree folds their depths.";

/// The flags of `report`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReportArgs {
    /// Sort by total (inclusive) time
    #[arg(long, overrides_with = "no_children")]
    children: bool,
    /// Show only what functions used themselves, and who called the hottest
    #[arg(long, overrides_with = "children")]
    no_children: bool,
    /// Only the table of functions, in this order
    #[arg(long, value_name = "ORDER")]
    sort: Option<Sort>,
    /// Omit the call tree
    #[arg(long)]
    flat: bool,
    /// A row for each thread, a tree for each thread
    #[arg(long, conflicts_with = "processes")]
    threads: bool,
    /// A row for each process, a tree for each process
    #[arg(long)]
    processes: bool,
    #[command(flatten)]
    unit: UnitArgs,
    #[command(flatten)]
    filters: FilterArgs,
    #[command(flatten)]
    value: ValueArgs,
    /// Of allocations (record -e alloc): what nobody had freed at the end, by where it was allocated; as --value inuse_space
    #[arg(long, conflicts_with = "value")]
    leaks: bool,
    /// Of a recording with `--unwind both`: only the first stacks that differ from what came of their copies
    #[arg(long, conflicts_with_all = ["leaks", "flat", "sort", "threads", "processes"])]
    differences: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Rows of the table, and again of the tree; 0 for all [default: what fits the terminal]
    #[arg(long, value_name = "ROWS")]
    limit: Option<usize>,
    #[command(flatten)]
    symbols: SymbolArgs,
    /// The profile
    #[arg(value_name = "FILE", default_value = "selfwind.data")]
    pub(crate) file: PathBuf,
}

impl From<&ReportArgs> for ReportOptions {
    fn from(args: &ReportArgs) -> Self {
        Self {
            view: match (args.children, args.no_children) {
                (true, _) => View::Children,
                (_, true) => View::NoChildren,
                _ => View::Both,
            },
            unit: args.unit.into(),
            rows: match (args.threads, args.processes) {
                (true, _) => Rows::Threads,
                (_, true) => Rows::Processes,
                _ => Rows::Elements,
            },
            sort: args.sort,
            flat: args.flat || args.sort.is_some(),
            filters: (&args.filters).into(),
            value: if args.leaks { Some(HeapValue::InuseSpace) } else { args.value.value() },
            differences: args.differences,
            json: args.json,
            limit: args.limit,
            sources: (&args.symbols).into(),
        }
    }
}
