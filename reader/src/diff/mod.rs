//! `diff`: what changed between two profiles.
//!
//! Profiles of different length are compared by shares of their weight. Functions are the same if name and
//! binary are; addresses mean nothing across builds.

mod arguments;
mod folded;
mod json;
mod significance;
mod text;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

pub use arguments::DiffArgs;

use crate::call_tree::{Stacks, weights};
use crate::profile::{self, Profile};
use crate::screen::Screen;
use crate::selection::{Filters, Heading, Label, Selection, Unit};
use crate::symbolize::SymbolSources;

/// How a comparison is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A table for people.
    Text,
    /// One JSON object.
    Json,
    /// `STACK WEIGHT_A WEIGHT_B` lines, as differential flame graphs are made of.
    Folded,
    /// A differential flame graph as SVG.
    Flamegraph,
}

/// How functions are ordered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// By the change of what is used itself.
    #[default]
    #[value(name = "self")]
    Own,
    /// By the change of what is used with all that is called.
    Total,
}

/// What `diff` shows.
#[derive(Debug, Clone)]
pub struct DiffOptions {
    /// The form.
    pub form: Form,
    /// The order.
    pub sort: Sort,
    /// Functions, lines or modules.
    pub unit: Unit,
    /// Which stacks of both.
    pub filters: Filters,
    /// Least change that is shown, in percent of everything. None: 0.1 where there are many, all in JSON.
    pub threshold: Option<f64>,
    /// Rows; none: what fits the screen; 0: all.
    pub limit: Option<usize>,
    /// Where to write; none: standard output.
    pub output: Option<PathBuf>,
    /// Where names may be taken from.
    pub sources: SymbolSources,
}

/// What a function weighs in one profile.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Weighed {
    own: u64,
    total: u64,
}

/// One side.
struct Side<'p> {
    selection: Selection<'p>,
    name: String,
}

impl<'p> Side<'p> {
    fn new(profile: &'p Profile, path: &Path, options: &DiffOptions) -> Self {
        let selection = Selection::new(profile, options.unit, Heading::None, &options.filters);
        Side { selection, name: path.display().to_string() }
    }

    fn weight(&self) -> u64 {
        self.selection.weight()
    }

    /// Samples chosen: what chance depends on.
    fn samples(&self) -> u64 {
        self.selection.threads().iter().map(|&(_, samples, _)| samples).sum()
    }

    fn share(&self, weight: u64) -> f64 {
        weight as f64 / self.weight().max(1) as f64
    }
}

/// A function in both profiles.
#[derive(Debug, Clone)]
struct Change {
    name: String,
    module: String,
    a: Weighed,
    b: Weighed,
    /// Changes of shares, B minus A: of everything of a side, so between -1 and 1.
    own: f64,
    total: f64,
    /// Probability that chance alone makes such a change of the own, and of the total share.
    p_own: f64,
    p_total: f64,
    /// More than chance, among all functions.
    significant: bool,
}

/// Compares two profile files.
///
/// # Errors
/// When one cannot be read, when one has no samples, or when the output cannot be written.
pub fn run(
    a: &Path,
    b: &Path,
    options: &DiffOptions,
    screen: Screen,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let (profile_a, profile_b) = (profile::load(a, &options.sources)?, profile::load(b, &options.sources)?);
    let sides = (Side::new(&profile_a, a, options), Side::new(&profile_b, b, options));
    for side in [&sides.0, &sides.1] {
        if side.weight() == 0 {
            let filters = options.filters.flags();
            let why = if filters.is_empty() {
                "it has no samples".into()
            } else {
                format!("nothing matches {filters}")
            };
            anyhow::bail!("{}: {why}; there is nothing to compare", side.name);
        }
    }
    let Some(path) = &options.output else { return write(&sides, options, screen, out) };
    let cannot = || format!("{}: cannot write it; choose another place with -o", path.display());
    let mut file = BufWriter::new(File::create(path).with_context(cannot)?);
    write(&sides, options, screen, &mut file).with_context(cannot)
}

fn write(
    (a, b): &(Side<'_>, Side<'_>),
    options: &DiffOptions,
    screen: Screen,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    match options.form {
        Form::Text => {
            out.write_all(text::render(a, b, &changes(a, b, options.sort), options, screen).as_bytes())?
        }
        Form::Json => json::write(a, b, &changes(a, b, options.sort), options, out)?,
        Form::Folded => folded::write(a, b, out)?,
        Form::Flamegraph => folded::flamegraph(a, b, out)?,
    }
    Ok(out.flush()?)
}

/// Every function of either side, the greatest change first.
fn changes(a: &Side<'_>, b: &Side<'_>, sort: Sort) -> Vec<Change> {
    let mut both: BTreeMap<(String, String), (Weighed, Weighed)> = BTreeMap::new();
    for (key, weighed) in weighed(&a.selection) {
        both.insert(key, (weighed, Weighed::default()));
    }
    for (key, weighed) in weighed(&b.selection) {
        both.entry(key).or_default().1 = weighed;
    }
    let (n_a, n_b) = (a.samples(), b.samples());
    let test = |in_a: u64, in_b: u64| significance::probability(a.share(in_a), n_a, b.share(in_b), n_b);
    let change = |((name, module), (in_a, in_b)): ((String, String), (Weighed, Weighed))| Change {
        name,
        module,
        a: in_a,
        b: in_b,
        own: b.share(in_b.own) - a.share(in_a.own),
        total: b.share(in_b.total) - a.share(in_a.total),
        p_own: test(in_a.own, in_b.own),
        p_total: test(in_a.total, in_b.total),
        significant: false,
    };
    let mut changes: Vec<Change> = both.into_iter().map(change).collect();
    let probabilities: Vec<f64> =
        changes.iter().map(|c| if sort == Sort::Own { c.p_own } else { c.p_total }).collect();
    for (change, mark) in changes.iter_mut().zip(significance::significant(&probabilities)) {
        change.significant = mark;
    }
    let size = |change: &Change| match sort {
        Sort::Own => (change.own.abs(), change.total.abs()),
        Sort::Total => (change.total.abs(), change.own.abs()),
    };
    changes.sort_by(|a, b| {
        let (a, b) = (size(a), size(b));
        b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1))
    });
    changes
}

/// What weighs anything, by name and module.
fn weighed(selection: &Selection<'_>) -> BTreeMap<(String, String), Weighed> {
    let mut sums: BTreeMap<(String, String), Weighed> = BTreeMap::new();
    for (label, weight) in weights(selection).iter().enumerate().filter(|(_, weight)| weight.total > 0) {
        let label = label as u32;
        let module = match *selection.label(label) {
            Label::Function(function) | Label::Line(function, ..) => {
                selection.profile().module_name(function)
            }
            _ => String::new(),
        };
        let sum = sums.entry((selection.text(label).to_owned(), module)).or_default();
        // Two binaries of one name, two functions of one name: taken together, never over everything.
        sum.own += weight.own;
        sum.total = (sum.total + weight.total).min(selection.weight());
    }
    sums
}
