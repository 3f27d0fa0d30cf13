//! What a profile used, in a unit that recordings at different rates have in common.

use selfwind_profile::measure::Unit;
use selfwind_profile::selection::Selection;

/// An amount.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Amount {
    pub(super) value: f64,
    /// What it is of: `CPU time`, `time off the CPU`, the name of an event.
    pub(super) unit: String,
    /// It is in seconds.
    pub(super) seconds: bool,
}

impl Amount {
    /// What the selected part used; none where weights stand for nothing countable.
    pub(super) fn of(selection: &Selection<'_>) -> Option<Amount> {
        let profile = selection.profile();
        let measure = profile.measure(profile.main);
        let weight = selection.weight() as f64;
        let seconds = |value, unit: &str| Some(Amount { value, unit: unit.to_owned(), seconds: true });
        match measure.unit {
            Unit::CpuPeriod(_) => {
                let mut ns = 0.0;
                for (thread, _, weight) in selection.threads() {
                    let period = profile.period_ns(thread, profile.main);
                    if period == 0 {
                        return None;
                    }
                    ns += weight as f64 * period as f64;
                }
                seconds(ns / 1e9, "CPU time")
            }
            Unit::Microsecond => seconds(weight / 1e6, "time off the CPU"),
            Unit::Nanosecond => seconds(weight / 1e9, "waiting for locks"),
            Unit::Events(each) => {
                let value = weight * each as f64;
                Some(Amount { value, unit: measure.name.to_string(), seconds: false })
            }
            Unit::Byte => {
                Some(Amount { value: weight, unit: format!("bytes, {}", measure.name), seconds: false })
            }
            Unit::Sample => None,
        }
    }

    /// With its unit, for people.
    pub(super) fn text(&self) -> String {
        if self.seconds { format!("{:.2} s", self.value) } else { format!("{:.0}", self.value) }
    }
}
