//! `diff`: what changed between two profiles.
//!
//! Profiles are compared by shares of their weight, since their lengths differ; memory in use is compared by its amount.
//! Functions are the same if name and binary are equal or, if a binary has another name in the other profile, if the name
//! alone is. Addresses are not comparable across builds.

mod amount;
mod arguments;
mod folded;
mod gate;
mod json;
mod significance;
mod text;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

use amount::Amount;
pub(crate) use arguments::DiffArgs;
pub(crate) use gate::Gate;

use crate::flags::event;
use crate::terminal::screen::Screen;
use selfwind_profile::call_tree::{Stacks, weights};
use selfwind_profile::input;
use selfwind_profile::output::refuse_own;
use selfwind_profile::profile::{self, Profile};
use selfwind_profile::selection::{Filters, Heading, Label, Selection, Unit};
use selfwind_profile::staged_file::StagedFile;
use selfwind_profile::symbolize::SymbolSources;

/// How a comparison is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A table.
    Text,
    /// One JSON object.
    Json,
    /// `STACK WEIGHT_A WEIGHT_B` lines, the input of differential flame graphs.
    Folded,
    /// A differential flame graph as SVG.
    Flamegraph,
}

/// How functions are ordered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// By the change in self time
    #[default]
    #[value(name = "self")]
    Own,
    /// By the change in total (inclusive) time
    Total,
}

/// What `diff` shows.
#[derive(Debug, Clone)]
pub(crate) struct DiffOptions {
    /// The form.
    form: Form,
    /// The order.
    pub(crate) sort: Sort,
    /// Functions, lines or modules.
    pub(crate) unit: Unit,
    /// Which stacks of both to compare.
    pub(crate) filters: Filters,
    /// Which event of both to compare; none: the main one.
    pub(crate) event: Option<String>,
    /// Smallest change to show, in percent of the total. None: 0.1 in the table, 0 in JSON.
    threshold: Option<f64>,
    /// Maximum number of rows; none: as many as fit the screen; 0: all.
    pub(crate) limit: Option<usize>,
    /// Conditions under which the comparison fails.
    gates: Vec<Gate>,
    /// Where to write; none: standard output.
    pub(crate) output: Option<PathBuf>,
    /// Where to look up names.
    pub(crate) sources: SymbolSources,
}

/// The weight of a function in one profile.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Weighed {
    own: u64,
    total: u64,
}

/// One of the two profiles.
struct Side<'p> {
    selection: Selection<'p>,
    name: String,
    /// Its amount, if known.
    amount: Option<Amount>,
}

impl<'p> Side<'p> {
    fn new(profile: &'p Profile, path: &Path, options: &DiffOptions) -> Self {
        let selection = Selection::new(profile, options.unit, Heading::None, &options.filters);
        Side { name: input::name(path).into_owned(), amount: Amount::of(&selection), selection }
    }

    /// True if its weights are levels (memory in use), which are compared without scaling.
    fn is_level(&self) -> bool {
        let profile = self.selection.profile();
        profile.measure(profile.main).is_level()
    }

    fn weight(&self) -> u64 {
        self.selection.weight()
    }

    /// What its weights count.
    fn counts(&self) -> String {
        let profile = self.selection.profile();
        let measure = profile.measure(profile.main);
        if measure.is_cpu_time() { "CPU time".into() } else { measure.name.to_string() }
    }

    /// Number of selected samples.
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
    /// Changes in shares of each side's total, B minus A: between -1 and 1. For memory in use, changes in the amount, relative to the
    /// larger total.
    own: f64,
    total: f64,
    /// p-values of the changes in the self and in the total share.
    p_own: f64,
    p_total: f64,
    /// The change is significant, given the number of functions compared.
    significant: bool,
}

/// Both sides and the changes.
struct Comparison<'p> {
    a: Side<'p>,
    b: Side<'p>,
    /// Largest change first.
    changes: Vec<Change>,
}

impl Comparison<'_> {
    /// Amount of B divided by that of A; `None` if one of them is not known.
    fn ratio(&self) -> Option<f64> {
        let (a, b) = (self.a.amount.as_ref()?, self.b.amount.as_ref()?);
        (a.value > 0.0 && a.unit == b.unit).then(|| b.value / a.value)
    }
}

/// Compares two profile files. Returns one line for each failed `--fail-if` condition.
///
/// # Errors
/// If one cannot be read or has no samples, if they count different things, or if the output cannot be written.
pub(crate) fn run(
    a: &Path,
    b: &Path,
    options: &DiffOptions,
    screen: Screen,
    out: &mut dyn Write,
) -> anyhow::Result<Vec<String>> {
    let load = |path: &Path| {
        let mut profile = profile::load(path, &options.sources)?;
        let name = || input::name(path).into_owned();
        event::choose(&mut profile, options.event.as_deref()).with_context(name)?;
        anyhow::Ok(profile)
    };
    let (profile_a, profile_b) = (load(a)?, load(b)?);
    let sides = (Side::new(&profile_a, a, options), Side::new(&profile_b, b, options));
    let (counts_a, counts_b) = (sides.0.counts(), sides.1.counts());
    if counts_a != counts_b {
        anyhow::bail!(
            "{} counts {counts_a}, {} counts {counts_b}: their shares cannot be compared; record both with the same -e, or choose with --event",
            sides.0.name,
            sides.1.name
        );
    }
    for side in [&sides.0, &sides.1] {
        // An empty side is fine for memory in use: everything has grown.
        if side.weight() == 0 && !side.is_level() {
            let filters = options.filters.flags();
            let why = if filters.is_empty() {
                "it has no samples".into()
            } else {
                format!("nothing matches {filters}")
            };
            anyhow::bail!("{}: {why}; there is nothing to compare", side.name);
        }
    }
    let changes = changes(&sides.0, &sides.1, options.sort);
    let comparison = Comparison { a: sides.0, b: sides.1, changes };
    output(&comparison, (a, b), options, screen, out)?;
    let failures = options.gates.iter().map(|gate| gate.failure(&comparison));
    Ok(failures.collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten().collect())
}

fn output(
    comparison: &Comparison<'_>,
    (a, b): (&Path, &Path),
    options: &DiffOptions,
    screen: Screen,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let Some(path) = &options.output else { return write(comparison, options, screen, out) };
    let cannot = || format!("{}: cannot write the output; choose another file with -o", path.display());
    refuse_own(a, path)?;
    refuse_own(b, path)?;
    let mut file = StagedFile::create(path).with_context(cannot)?;
    write(comparison, options, screen, &mut BufWriter::new(&mut file)).with_context(cannot)?;
    file.commit().with_context(cannot)
}

fn write(
    comparison: &Comparison<'_>,
    options: &DiffOptions,
    screen: Screen,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let Comparison { a, b, .. } = comparison;
    match options.form {
        Form::Text => out.write_all(text::render(comparison, options, screen).as_bytes())?,
        Form::Json => json::write(comparison, options, out)?,
        Form::Folded => folded::write(a, b, out)?,
        Form::Flamegraph => folded::flamegraph(a, b, out)?,
    }
    Ok(out.flush()?)
}

/// All functions of either side, largest change first.
fn changes(a: &Side<'_>, b: &Side<'_>, sort: Sort) -> Vec<Change> {
    let mut both: BTreeMap<(String, String), (Weighed, Weighed)> = BTreeMap::new();
    for (key, weighed) in weighed(&a.selection) {
        both.insert(key, (weighed, Weighed::default()));
    }
    let in_b = weighed(&b.selection);
    let other_module = moved(&both, &in_b);
    for ((name, module), weighed) in in_b {
        let key = other_module.get(&name).map_or((name.clone(), module), |before| (name, before.clone()));
        both.entry(key).or_default().1 = weighed;
    }
    let (n_a, n_b) = (a.selection.effective_samples(), b.selection.effective_samples());
    let greater = a.weight().max(b.weight()).max(1) as f64;
    let by = |in_a: u64, in_b: u64| match a.is_level() {
        true => (in_b as f64 - in_a as f64) / greater,
        false => b.share(in_b) - a.share(in_a),
    };
    let test = |in_a: u64, in_b: u64| match a.is_level() {
        true => significance::of_counts(a.share(in_a) * n_a, b.share(in_b) * n_b),
        false => significance::probability(a.share(in_a), n_a, b.share(in_b), n_b),
    };
    let change = |((name, module), (in_a, in_b)): ((String, String), (Weighed, Weighed))| Change {
        name,
        module,
        a: in_a,
        b: in_b,
        own: by(in_a.own, in_b.own),
        total: by(in_a.total, in_b.total),
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

/// Functions that have different modules in A and B, but only one on each side: a program built under another name, a library
/// of another version. Maps the name to the module in A.
fn moved(
    in_a: &BTreeMap<(String, String), (Weighed, Weighed)>,
    in_b: &BTreeMap<(String, String), Weighed>,
) -> BTreeMap<String, String> {
    let mut modules: BTreeMap<&str, (Vec<&str>, usize)> = BTreeMap::new();
    for (name, module) in in_a.keys().filter(|key| !in_b.contains_key(*key)) {
        modules.entry(name).or_default().0.push(module);
    }
    for (name, _) in in_b.keys().filter(|key| !in_a.contains_key(*key)) {
        modules.entry(name).or_default().1 += 1;
    }
    let one = |(name, (before, after)): (&str, (Vec<&str>, usize))| match before[..] {
        [module] if after == 1 => Some((name.to_owned(), module.to_owned())),
        _ => None,
    };
    modules.into_iter().filter_map(one).collect()
}

/// All functions with a weight, by name and module.
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
        // Binaries or functions of the same name are added up, but never beyond the total.
        sum.own += weight.own;
        sum.total = (sum.total + weight.total).min(selection.weight());
    }
    sums
}
