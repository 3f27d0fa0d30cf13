//! A flame graph as SVG, drawn by inferno.

use std::io::{self, Write};

use inferno::flamegraph::color::{BasicPalette, Palette};
use inferno::flamegraph::{self, Direction, Options};

use super::{Grouping, folded};
use crate::measure::Unit;
use crate::profile::Profile;

/// Levels that a window shows. A browser opens a taller graph at its top, where only the deepest stacks reach.
const WINDOW: usize = 50;
/// What is less than this part of the whole is narrower than anything that is drawn.
const NARROWEST: u64 = 10_000;

/// Writes the flame graph of a profile: the roots below, or above if they would be out of sight below.
pub(super) fn write(profile: &Profile, grouping: Grouping, out: &mut dyn Write) -> io::Result<()> {
    let mut lines: Vec<String> = Vec::new();
    folded::fold(profile, grouping, profile.totals.weight / NARROWEST, &mut |stack, weight| {
        lines.push(format!("{} {weight}", show_kernel(stack)));
        Ok(())
    })?;
    if lines.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the profile has no samples to draw"));
    }
    let mut options = Options::default();
    if lines.iter().any(|line| line.split(';').count() > WINDOW) {
        options.direction = Direction::Inverted;
    }
    options.title = title(profile);
    let words = profile.weight_in_words().map_or(String::new(), |words| format!(": {words}"));
    options.subtitle =
        Some(format!("{} samples, weight {}{words}", profile.totals.samples, profile.totals.weight));
    options.count_name = count_name(profile);
    options.colors = Palette::Basic(BasicPalette::Hot);
    // Colours by name, so that the same function looks the same in every run.
    options.hash = true;
    options.deterministic = true;
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out)
        .map_err(|error| io::Error::other(error.to_string()))
}

/// inferno takes the mark of kernel functions for a hint of its own and leaves it out.
fn show_kernel(stack: &str) -> String {
    let show = |function: &str| match function.strip_suffix("_[k]") {
        Some(function) => format!("{function} [kernel]"),
        None => function.to_owned(),
    };
    stack.split(';').map(show).collect::<Vec<_>>().join(";")
}

/// What the numbers of frames are.
fn count_name(profile: &Profile) -> String {
    let [measure] = &profile.measures[..] else { return "samples".into() };
    match measure.unit {
        Unit::Microsecond => "us".into(),
        Unit::Events(1) => measure.name.to_string(),
        _ => "samples".into(),
    }
}

/// The recorded command, else the first process, cut to what fits above a graph.
fn title(profile: &Profile) -> String {
    let mut title = profile.session.command.join(" ");
    if title.is_empty() {
        title = profile.processes.first().map(|process| process.name()).unwrap_or_default();
    }
    if title.chars().count() > 100 {
        title = title.chars().take(99).chain(['…']).collect();
    }
    title.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
