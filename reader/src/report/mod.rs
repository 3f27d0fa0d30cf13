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
mod waits;

#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::Path;

pub(crate) use arguments::ReportArgs;

use crate::flags::event;
use crate::terminal::screen::Screen;
use selfwind_profile::input;
use selfwind_profile::profile::{self, Profile};
use selfwind_profile::selection::{Filters, Heading, Selection, Unit};
use selfwind_profile::symbolize::SymbolSources;
use selfwind_profile::tracepoint::Wanted;

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
    /// Values of a field of events, or events; the tree is apart for each.
    Values,
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
    /// The field whose values are the rows, or [`EVENT`].
    pub(crate) by: Option<String>,
    /// The order of the table. None: what `view` is about.
    pub(crate) sort: Option<Sort>,
    /// Only the table.
    pub(crate) flat: bool,
    /// Which stacks.
    pub(crate) filters: Filters,
    /// Which event; none: the main one.
    pub(crate) event: Option<String>,
    /// Nothing but stacks whose copies gave other frames.
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
            Rows::Values => Heading::Values,
            Rows::Elements => otherwise,
        }
    }

    fn order(&self) -> Sort {
        self.sort.unwrap_or(if self.view == View::Children { Sort::Total } else { Sort::Own })
    }
}

/// In the place of a field's name: which tracepoint it is.
const EVENT: &str = "event";
/// The event that has fields.
const TRACEPOINTS: &str = "tracepoints";

/// Refuses a field that no event has.
fn check_field(profile: &Profile, wanted: Option<&str>) -> anyhow::Result<()> {
    let Some(field) = wanted else { return Ok(()) };
    let names = profile.tracepoints.field_names();
    if names.is_empty() && !profile.tracepoints.are_there() {
        anyhow::bail!(
            "--by {field}: no events of tracepoints are in this profile; `record -e tp:PROVIDER:NAME` records them"
        );
    }
    if field != EVENT && !names.contains(field) {
        let names: Vec<&str> = names.into_iter().collect();
        anyhow::bail!("--by {field}: no event has that field; use event, or one of {}", names.join(", "));
    }
    Ok(())
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
    let wanted = match options.by.as_deref() {
        None => Wanted::Nothing,
        Some(EVENT) => Wanted::Names,
        Some(field) => Wanted::Field(field.to_owned()),
    };
    let mut profile = profile::load_wanted(path, &options.sources, wanted)?;
    check_field(&profile, options.by.as_deref())?;
    let by = options.by.is_some().then_some(TRACEPOINTS);
    event::choose(&mut profile, options.event.as_deref().or(by))?;
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
