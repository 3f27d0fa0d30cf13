//! The flags that select parts of a profile.

use clap::Args;
use regex_lite::Regex;
use selfwind_profile::selection::{Filters, Unit};

/// Flags that select the level of detail.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct UnitArgs {
    /// Break functions down by source line
    #[arg(long, conflicts_with = "modules")]
    lines: bool,
    /// Group by binary
    #[arg(long)]
    modules: bool,
}

impl From<UnitArgs> for Unit {
    fn from(args: UnitArgs) -> Self {
        match (args.lines, args.modules) {
            (true, _) => Unit::Line,
            (_, true) => Unit::Module,
            _ => Unit::Function,
        }
    }
}

/// Flags that select stacks.
#[derive(Debug, Args)]
pub(crate) struct FilterArgs {
    /// Only threads whose name or id matches
    #[arg(long, value_name = "REGEX", help_heading = "Filters")]
    thread: Option<Regex>,
    /// Only processes whose name or id matches
    #[arg(long, value_name = "REGEX", help_heading = "Filters")]
    process: Option<Regex>,
    /// Only stacks through a binary that matches
    #[arg(long, value_name = "REGEX", help_heading = "Filters")]
    module: Option<Regex>,
    /// Only stacks through a function that matches
    #[arg(long, value_name = "REGEX", help_heading = "Filters")]
    symbol: Option<Regex>,
    /// Only stacks through a function that matches, from that function on
    #[arg(long, value_name = "REGEX", help_heading = "Filters")]
    root: Option<Regex>,
}

impl From<&FilterArgs> for Filters {
    fn from(args: &FilterArgs) -> Self {
        let FilterArgs { thread, process, module, symbol, root } = args;
        Self {
            thread: thread.clone(),
            process: process.clone(),
            module: module.clone(),
            symbol: symbol.clone(),
            root: root.clone(),
        }
    }
}
