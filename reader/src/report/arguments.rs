//! The flags of `report`.

use std::path::PathBuf;

use clap::Args;
use selfwind_profile::events;

use super::options::{ReportOptions, Rows, Sort, View};
use crate::flags::event::EventArgs;
use crate::flags::selection::{FilterArgs, UnitArgs};
use crate::flags::symbols::SymbolArgs;

const EXAMPLES: &str = "Examples:
  selfwind report                        the profile selfwind.data
  selfwind report --limit 0 job.data     everything, however long
  selfwind report --sort total           functions only, by total time
  selfwind report --threads              by thread
  selfwind report --lines --symbol parse which lines, on the stacks through `parse`
  selfwind report --root '^main$'        stacks from `main` on
  selfwind report --event alloc_space    one of several events (record -e cpu,alloc)
  selfwind report --by path              events by the value of their field `path` (record -e tp:...)
  selfwind report --leaks                memory not freed at the end (record -e alloc)
  selfwind report --differences          stacks whose two walks differ (record --unwind both)
  selfwind report --json job.data | jq '.functions[:5]'

SELF is the time in the function itself, TOTAL includes everything it called. A line of the tree is a chain of \
calls without branches, with TOTAL of its first function and SELF of its last. `?` marks a frame that was guessed \
from the contents of the stack, `↻` a recursive function: the tree folds its levels.";

/// The flags of `report`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReportArgs {
    /// Sort by total (inclusive) time
    #[arg(long, overrides_with = "no_children")]
    children: bool,
    /// Sort by self time, and show the callers of the hottest functions
    #[arg(long, overrides_with = "children")]
    no_children: bool,
    /// Show only the table, in this order
    #[arg(long, value_name = "ORDER")]
    sort: Option<Sort>,
    /// Omit the call tree
    #[arg(long)]
    flat: bool,
    /// Group by thread
    #[arg(long, conflicts_with = "processes")]
    threads: bool,
    /// Group by process
    #[arg(long)]
    processes: bool,
    /// Group by the value of a field of tracepoint events; `event`: group by tracepoint
    #[arg(long, value_name = "FIELD", conflicts_with_all = ["threads", "processes"])]
    by: Option<String>,
    #[command(flatten)]
    unit: UnitArgs,
    #[command(flatten)]
    filters: FilterArgs,
    #[command(flatten)]
    event: EventArgs,
    /// Show memory in use: allocations not freed at the end, by where they were allocated (record -e alloc; same as --event inuse_space), or else mappings (record -e mmap; same as --event mmap_inuse_space)
    #[arg(long, conflicts_with = "event")]
    leaks: bool,
    /// Show only stacks whose two walks differ, in a recording with --unwind both
    #[arg(long, conflicts_with_all = ["leaks", "flat", "sort", "threads", "processes", "event", "by"])]
    differences: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Maximum number of rows in the table and in the tree; 0 for all [default: as many as fit the terminal]
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
                _ if args.by.is_some() => Rows::Values,
                _ => Rows::Elements,
            },
            by: args.by.clone(),
            sort: args.sort,
            flat: args.flat || args.sort.is_some(),
            filters: (&args.filters).into(),
            event: match args.leaks {
                true => Some(events::LEAKS.into()),
                false => args.event.name().map(str::to_owned),
            },
            differences: args.differences,
            json: args.json,
            limit: args.limit,
            sources: (&args.symbols).into(),
        }
    }
}
