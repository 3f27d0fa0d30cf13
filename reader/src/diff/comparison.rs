//! Both profiles, and what changed between them.

use std::path::Path;

use selfwind_profile::input;
use selfwind_profile::profile::Profile;
use selfwind_profile::selection::{Filters, Heading, Selection, Unit};

use super::amount::Amount;

/// The weight of a function in one profile.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Weighed {
    pub(super) own: u64,
    pub(super) total: u64,
}

/// One of the two profiles.
pub(super) struct Side<'p> {
    pub(super) selection: Selection<'p>,
    pub(super) name: String,
    /// Its amount, if known.
    pub(super) amount: Option<Amount>,
}

impl<'p> Side<'p> {
    pub(super) fn new(profile: &'p Profile, path: &Path, unit: Unit, filters: &Filters) -> Self {
        let selection = Selection::new(profile, unit, Heading::None, filters);
        Side { name: input::name(path).into_owned(), amount: Amount::of(&selection), selection }
    }

    /// True if its weights are levels (memory in use), which are compared without scaling.
    pub(super) fn is_level(&self) -> bool {
        let profile = self.selection.profile();
        profile.measure(profile.main).is_level()
    }

    pub(super) fn weight(&self) -> u64 {
        self.selection.weight()
    }

    /// What its weights count.
    pub(super) fn counts(&self) -> String {
        let profile = self.selection.profile();
        let measure = profile.measure(profile.main);
        if measure.is_cpu_time() { "CPU time".into() } else { measure.name.to_string() }
    }

    /// Number of selected samples.
    pub(super) fn samples(&self) -> u64 {
        self.selection.threads().iter().map(|&(_, samples, _)| samples).sum()
    }

    pub(super) fn share(&self, weight: u64) -> f64 {
        weight as f64 / self.weight().max(1) as f64
    }
}

/// A function in both profiles.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) name: String,
    pub(super) module: String,
    pub(super) a: Weighed,
    pub(super) b: Weighed,
    /// Changes in shares of each side's total, B minus A: between -1 and 1. For memory in use, changes in the amount, relative to the
    /// larger total.
    pub(super) own: f64,
    pub(super) total: f64,
    /// p-values of the changes in the self and in the total share.
    pub(super) p_own: f64,
    pub(super) p_total: f64,
    /// The change is significant, given the number of functions compared.
    pub(super) significant: bool,
}

/// Both sides and the changes.
pub(super) struct Comparison<'p> {
    pub(super) a: Side<'p>,
    pub(super) b: Side<'p>,
    /// Largest change first.
    pub(super) changes: Vec<Change>,
}

impl Comparison<'_> {
    /// Amount of B divided by that of A; `None` if one of them is not known.
    pub(super) fn ratio(&self) -> Option<f64> {
        let (a, b) = (self.a.amount.as_ref()?, self.b.amount.as_ref()?);
        (a.value > 0.0 && a.unit == b.unit).then(|| b.value / a.value)
    }
}
