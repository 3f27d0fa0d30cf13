//! A flame graph as SVG, drawn by inferno.
//!
//! Boxes show names without type arguments; the tooltip has the full name. Colours distinguish the program, its libraries, inlined
//! functions, generated code and the kernel.

use std::collections::BTreeMap;
use std::io::{self, Write};

use inferno::flamegraph::color::{Color, PaletteMap};
use inferno::flamegraph::{self, Direction, Options, TextTruncateDirection};

use super::description::{Description, Writer};
use super::folded::{self, Kind, Naming};
use super::grouping::Grouping;
use super::title;
use crate::digits::{counted, grouped};
use crate::measure::Unit;
use crate::profile::Profile;

/// The format.
pub(super) const DESCRIPTION: Description = Description::text("flamegraph", &["svg"], Writer::Named(write));

/// Number of levels that fit a window. A browser opens a taller graph at its top, which only the deepest stacks reach.
const WINDOW: usize = 50;
/// Smaller shares are too narrow to be drawn.
const NARROWEST: u64 = 10_000;
/// Maximum length of a title in characters.
const TITLE_WIDTH: usize = 100;

/// The graph of a profile without samples: a program that ends before its first sample is no error.
const EMPTY: &str = r#"<?xml version="1.0" standalone="no"?>
<svg version="1.1" width="1200" height="80" viewBox="0 0 1200 80" xmlns="http://www.w3.org/2000/svg">
<rect width="100%" height="100%" fill="white"/>
<text x="600" y="46" text-anchor="middle" font-family="sans-serif" font-size="17">The profile has no samples</text>
</svg>
"#;

/// Writes the flame graph of a profile: roots at the bottom, or at the top if they would be out of sight at the bottom.
fn write(profile: &Profile, grouping: Grouping, out: &mut dyn Write) -> io::Result<()> {
    let naming = Naming::short(profile);
    let mut lines: Vec<String> = Vec::new();
    let least = profile.totals.weight / NARROWEST;
    folded::fold(profile, grouping, least, &naming, &mut |stack, weight| {
        lines.push(format!("{stack} {weight}"));
        Ok(())
    })?;
    if lines.is_empty() {
        return out.write_all(EMPTY.as_bytes());
    }
    let mut palette = PaletteMap::default();
    let mut kinds: Vec<Kind> = Vec::new();
    for element in
        lines.iter().filter_map(|line| line.rsplit_once(' ')).flat_map(|(stack, _)| stack.split(';'))
    {
        let kind = Kind::of(element);
        palette.insert(element, colour(kind, element));
        kinds.push(kind);
    }
    kinds.sort_unstable();
    kinds.dedup();
    let mut options = Options::default();
    if lines.iter().any(|line| line.split(';').count() > WINDOW) {
        options.direction = Direction::Inverted;
    }
    options.title = cut_title(profile);
    options.subtitle = Some(format!("{} · {}", facts(profile), legend(&kinds)));
    (options.factor, options.count_name) = counting(profile);
    options.text_truncate_direction = TextTruncateDirection::Right;
    options.palette_map = Some(&mut palette);
    options.deterministic = true;
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)
        .map_err(|error| io::Error::other(error.to_string()))?;
    out.write_all(with_whole_names(&String::from_utf8_lossy(&svg), &naming.whole).as_bytes())
}

/// Adds the full name to the tooltip of each shortened one: `short (count; full)`.
fn with_whole_names(svg: &str, whole: &BTreeMap<String, String>) -> String {
    const BEGIN: &str = "<title>";
    let mut text = String::with_capacity(svg.len());
    let mut rest = svg;
    while let Some(at) = rest.find(BEGIN) {
        let (before, tooltip) = rest.split_at(at + BEGIN.len());
        text.push_str(before);
        rest = tooltip;
        let Some((name, counts)) = tooltip.split_once('<').and_then(|(title, _)| title.rsplit_once(" ("))
        else {
            continue;
        };
        if let (Some(whole), Some(counts)) = (whole.get(&unescaped(name)), counts.strip_suffix(')')) {
            // The viewer takes everything from the last parenthesis on as the counts.
            let whole = escaped(&whole.replace('(', "❨").replace(')', "❩"));
            text.push_str(&format!("{name} ({counts}; {whole})"));
            rest = &tooltip[name.len() + 2 + counts.len() + 1..];
        }
    }
    text.push_str(rest);
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn unescaped(text: &str) -> String {
    let named = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    named.iter().fold(text.to_owned(), |text, (entity, character)| text.replace(entity, character))
}

/// The hue depends on the kind and the shade on the name, so that a function has the same colour in every run.
fn colour(kind: Kind, name: &str) -> Color {
    let hash = crc32fast::hash(name.as_bytes());
    let shade = |from: u8, range: u8, byte: u32| from + (hash >> (8 * byte) & 0xff) as u8 % range;
    let (r, g, b) = match kind {
        Kind::Program => (shade(225, 30, 0), shade(85, 70, 1), shade(40, 25, 2)),
        Kind::Library => (shade(225, 30, 0), shade(190, 40, 1), shade(60, 30, 2)),
        Kind::Inlined => (shade(105, 40, 0), shade(190, 35, 1), shade(150, 30, 2)),
        Kind::Interpreted => (shade(185, 30, 0), shade(145, 30, 1), shade(215, 30, 2)),
        Kind::Generated => (shade(130, 40, 0), shade(190, 40, 1), shade(60, 30, 2)),
        Kind::Kernel => (shade(120, 30, 0), shade(165, 30, 1), shade(220, 30, 2)),
        Kind::Mark => (shade(195, 15, 0), shade(195, 15, 0), shade(195, 15, 0)),
    };
    Color { r, g, b }
}

fn legend(kinds: &[Kind]) -> String {
    let text = |kind: &Kind| match kind {
        Kind::Program => Some("red: program"),
        Kind::Library => Some("yellow: libraries"),
        Kind::Inlined => Some("teal: inlined"),
        Kind::Generated => Some("green: generated code"),
        Kind::Interpreted => Some("violet: interpreted"),
        Kind::Kernel => Some("blue: kernel"),
        Kind::Mark => None,
    };
    kinds.iter().filter_map(text).collect::<Vec<_>>().join(", ")
}

/// The factor by which to multiply weights for display, and their unit then.
fn counting(profile: &Profile) -> (f64, String) {
    let measure = profile.measure(profile.main);
    match measure.unit {
        Unit::Microsecond => (1.0, "us".into()),
        Unit::Nanosecond => (1.0, "ns".into()),
        Unit::Byte => (1.0, "bytes".into()),
        Unit::Events(events) => (events as f64, measure.name.to_string()),
        Unit::Sample => (1.0, "samples".into()),
        Unit::CpuPeriod(_) => match period_ns(profile) {
            None => (1.0, "periods of CPU time".into()),
            Some(ns) if ns >= 1e6 => (ns / 1e6, "ms".into()),
            Some(ns) => (ns / 1e3, "us".into()),
        },
    }
}

/// The period of all samples in nanoseconds, if it is the same.
fn period_ns(profile: &Profile) -> Option<f64> {
    let of_main = profile.buckets.iter().filter(|bucket| bucket.event == profile.main);
    let mut periods = of_main.map(|bucket| profile.period_ns(bucket.thread, bucket.event));
    let first = periods.next().filter(|&ns| ns > 0)?;
    periods.all(|period| period == first).then_some(first as f64)
}

/// The subtitle: total time or events, number of samples, duration of the recording.
fn facts(profile: &Profile) -> String {
    let weight = profile.totals.weight;
    let whole = match (profile.weight_in_words(), period_ns(profile)) {
        (Some(words), _) => words,
        (None, Some(ns)) => format!("{:.2} s of CPU time", weight as f64 * ns / 1e9),
        (None, None) => format!("{} periods of CPU time", grouped(weight)),
    };
    let samples = counted(profile.totals.samples, "sample", "samples");
    let long = profile.stats.detail.duration_ns;
    let long = if long == 0 { String::new() } else { format!(" in {:.2} s", long as f64 / 1e9) };
    format!("{whole}{long}, {samples}")
}

/// The recorded command, or else the first process, shortened to fit above a graph.
fn cut_title(profile: &Profile) -> String {
    let mut title = title::title(profile);
    if title.chars().count() > TITLE_WIDTH {
        title = title.chars().take(TITLE_WIDTH - 1).chain(['…']).collect();
    }
    title.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
