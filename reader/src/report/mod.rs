//! `report`: where the time went, as text and as JSON.

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

/// Stands for the tracepoint itself in place of a field's name.
const EVENT: &str = "event";
/// The event that has fields.
const TRACEPOINTS: &str = "tracepoints";

/// Rejects a field that no event has.
fn check_field(profile: &Profile, wanted: Option<&str>) -> anyhow::Result<()> {
    let Some(field) = wanted else { return Ok(()) };
    let names = profile.tracepoints.field_names();
    if names.is_empty() && !profile.tracepoints.are_there() {
        anyhow::bail!(
            "--by {field}: the profile has no tracepoint events; `record -e tp:PROVIDER:NAME` records them"
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
/// If the profile cannot be read or `out` cannot be written.
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
