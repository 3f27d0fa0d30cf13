//! `report`: where the time went, as text and as JSON.

mod arguments;
mod chains;
mod differences;
mod header;
mod json;
mod options;
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
use options::{EVENT, ReportOptions};

use crate::flags::event;
use crate::terminal::screen::Screen;
use selfwind_profile::input;
use selfwind_profile::profile::{self, Profile};
use selfwind_profile::selection::{Heading, Selection};
use selfwind_profile::tracepoint::Wanted;

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
