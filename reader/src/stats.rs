//! `stats`: the statistics of a profile.

use std::io::Write;
use std::path::Path;

use selfwind_profile::profile_file::ProfileReader;
use selfwind_profile::stats::Tally;

use crate::terminal::screen::{Screen, fit, printable};

/// Reads a profile and prints its statistics. The text lists at most `limit` processes, or all for 0.
pub(crate) fn run(
    path: &Path,
    json: bool,
    limit: usize,
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
        let text = stats.text(tail, if limit == 0 { usize::MAX } else { limit });
        // A terminal would wrap long paths.
        let width = if screen.height.is_some() { screen.width } else { usize::MAX };
        for line in text.lines() {
            writeln!(out, "{}", fit(&printable(line), width))?;
        }
    }
    Ok(out.flush()?)
}
