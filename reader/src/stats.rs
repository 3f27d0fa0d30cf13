//! `stats`: the statistics of a profile.

use std::io::Write;
use std::path::Path;

use selfwind_profile::profile_file::{ProfileReader, Tail};
use selfwind_profile::stats::{Stats, Tally};

use crate::terminal::screen::{Screen, fit, printable};

/// Processes that are listed unless the screen has fewer rows.
const PROCESSES: usize = 5;

/// Reads a profile and prints its statistics. The text lists at most `limit` processes, or all for 0; by default as many
/// as fit the screen.
pub(crate) fn run(
    path: &Path,
    json: bool,
    limit: Option<usize>,
    screen: Screen,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let mut reader = ProfileReader::open(path)?.without_samples();
    let mut tally = Tally::default();
    for event in reader.by_ref() {
        tally.add(&event?);
    }
    // Weights of allocation samples depend on later events, so this is a second pass.
    let samples = ProfileReader::open(path)?;
    let tail = samples.for_each_sample(|sample_ref| tally.sample(sample_ref))?;
    let stats = tally.finish(std::fs::metadata(path).map_or(reader.bytes(), |metadata| metadata.len()));
    if json {
        serde_json::to_writer_pretty(&mut *out, &stats)?;
        writeln!(out)?;
    } else {
        let text = match limit {
            Some(0) => stats.text(tail, usize::MAX),
            Some(limit) => stats.text(tail, limit),
            None => fitted(&stats, tail, screen),
        };
        // A terminal would wrap long paths.
        let width = if screen.height.is_some() { screen.width } else { usize::MAX };
        for line in text.lines() {
            writeln!(out, "{}", fit(&printable(line), width))?;
        }
    }
    Ok(out.flush()?)
}

fn fitted(stats: &Stats, tail: Option<Tail>, screen: Screen) -> String {
    let text = stats.text(tail, PROCESSES);
    // The prompt takes a row, too.
    let rows = text.lines().count() + 1;
    match rows.saturating_sub(screen.height.unwrap_or(usize::MAX)) {
        0 => text,
        excess => stats.text(tail, PROCESSES.saturating_sub(excess).max(1)),
    }
}
