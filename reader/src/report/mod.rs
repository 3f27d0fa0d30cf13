//! `report`: where the time went, for people and as JSON.

mod arguments;
mod chains;
mod differences;
mod header;
mod json;
mod recursion;
mod table;
mod text;
mod tree;

#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::Path;

pub(crate) use arguments::ReportArgs;

use crate::flags::value;
use crate::terminal::screen::Screen;
use selfwind_profile::heap::HeapValue;
use selfwind_profile::input;
use selfwind_profile::profile;
use selfwind_profile::selection::{Filters, Heading, Selection, Unit};
use selfwind_profile::symbolize::SymbolSources;

/// Which weights a report is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum View {
    /// Functions by their own weight, with their totals; the tree of what calls what.
    #[default]
    Both,
    /// Functions by their total, callees included (`--children`).
    Children,
    /// Functions by their own weight alone (`--no-children`); the tree of who calls the hottest.
    NoChildren,
}

/// How the table is ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// By what is used itself.
    #[value(name = "self")]
    Own,
    /// By what is used with all that is called.
    Total,
    /// By name.
    Name,
    /// By binary, then by what is used itself.
    Module,
}

/// What a row of the table is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Rows {
    /// What the elements of stacks are: functions, lines or modules.
    #[default]
    Elements,
    /// Threads; the tree is apart for each.
    Threads,
    /// Processes; the tree is apart for each.
    Processes,
}

/// What `report` shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReportOptions {
    /// Which weights.
    pub(crate) view: View,
    /// What the elements of stacks are.
    pub(crate) unit: Unit,
    /// What the rows of the table are.
    pub(crate) rows: Rows,
    /// The order of the table. None: what `view` is about.
    pub(crate) sort: Option<Sort>,
    /// Only the table.
    pub(crate) flat: bool,
    /// Which stacks.
    pub(crate) filters: Filters,
    /// Which value of allocations; none: the usual one.
    pub(crate) value: Option<HeapValue>,
    /// Nothing but stacks that differ from what came of their copies.
    pub(crate) differences: bool,
    /// JSON instead of text.
    pub(crate) json: bool,
    /// Rows of the table, and again of the tree. None: what fits the screen; 0: all.
    pub(crate) limit: Option<usize>,
    /// Where separate debug files are.
    pub(crate) sources: SymbolSources,
}

impl ReportOptions {
    /// What stands above the roots, where `otherwise` says what does when it is not asked for.
    fn heading(&self, otherwise: Heading) -> Heading {
        match self.rows {
            Rows::Threads => Heading::Threads,
            Rows::Processes => Heading::Processes,
            Rows::Elements => otherwise,
        }
    }

    fn order(&self) -> Sort {
        self.sort.unwrap_or(if self.view == View::Children { Sort::Total } else { Sort::Own })
    }
}

/// Reads a profile file and writes a report of it.
///
/// # Errors
/// When the profile cannot be read or `out` cannot be written.
pub(crate) fn run(
    path: &Path,
    options: &ReportOptions,
    screen: Screen,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    if options.differences {
        return differences::write(path, options.limit, options.json, out);
    }
    let mut profile = profile::load(path, &options.sources)?;
    value::choose(&mut profile, options.value)?;
    if options.json {
        let selection =
            Selection::new(&profile, options.unit, options.heading(Heading::Programs), &options.filters);
        json::write(&selection, options, out)?;
    } else {
        let name = input::name(path).into_owned();
        out.write_all(text::render(&profile, &name, options, screen).as_bytes())?;
    }
    out.flush()?;
    Ok(())
}
