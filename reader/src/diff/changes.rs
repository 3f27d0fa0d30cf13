//! Finds the changes: which functions of both profiles are the same, and how their shares differ.

use std::collections::BTreeMap;

use selfwind_profile::call_tree::{Stacks, weights};
use selfwind_profile::selection::{Label, Selection};

use super::comparison::{Change, Side, Weighed};
use super::options::Sort;
use super::significance;

/// All functions of either side, largest change first.
pub(super) fn changes(a: &Side<'_>, b: &Side<'_>, sort: Sort) -> Vec<Change> {
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
