//! A flame graph as SVG, drawn by inferno.

use std::io::{self, Write};

use inferno::flamegraph::color::{BasicPalette, Palette};
use inferno::flamegraph::{self, Direction, Options};

use super::{Grouping, folded};
use crate::profile::Profile;

/// Levels that a window shows. A browser opens a taller graph at its top, where only the deepest stacks reach.
const WINDOW: usize = 50;

/// Writes the flame graph of a profile: the roots below, or above if they would be out of sight below.
pub(super) fn write(profile: &Profile, grouping: Grouping, out: &mut dyn Write) -> io::Result<()> {
    let lines: Vec<String> = folded::fold(profile, grouping)
        .into_iter()
        .filter(|&(_, weight)| weight > 0)
        .map(|(stack, weight)| format!("{stack} {weight}"))
        .collect();
    if lines.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the profile has no samples to draw"));
    }
    let mut options = Options::default();
    if lines.iter().any(|line| line.split(';').count() > WINDOW) {
        options.direction = Direction::Inverted;
    }
    options.title = title(profile);
    options.subtitle = Some(format!("{} samples, weight {}", profile.totals.samples, profile.totals.weight));
    options.count_name = "samples".into();
    options.colors = Palette::Basic(BasicPalette::Hot);
    // Colours by name, so that the same function looks the same in every run.
    options.hash = true;
    options.deterministic = true;
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out)
        .map_err(|error| io::Error::other(error.to_string()))
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
