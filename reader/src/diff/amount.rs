//! The amount that a profile represents, in a unit that does not depend on the sampling rate.

use selfwind_profile::digits::grouped;
use selfwind_profile::measure::Unit;
use selfwind_profile::selection::Selection;

/// An amount.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Amount {
    pub(super) value: f64,
    /// What is counted: `CPU time`, `time off the CPU`, or the name of an event.
    pub(super) unit: String,
    /// The value is in seconds.
    pub(super) seconds: bool,
}

impl Amount {
    /// The amount of the selected part; `None` if the weights cannot be converted.
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

    /// `B used 2.00 times the CPU time of A`.
    pub(super) fn compared(&self, ratio: f64) -> String {
        match self.unit.split_once(", ") {
            Some((unit, event)) => format!("B used {ratio:.2} times the {unit} of A ({event})"),
            None => format!("B used {ratio:.2} times the {} of A", self.unit),
        }
    }

    /// The amount, its digits in groups.
    pub(super) fn text(&self) -> String {
        if self.seconds { format!("{:.2} s", self.value) } else { grouped(self.value.round() as u64) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_grouped_and_their_event_comes_last() {
        let amount = Amount { value: 7_200_288.0, unit: "bytes, inuse_space".into(), seconds: false };
        assert_eq!(amount.text(), "7,200,288");
        assert_eq!(amount.compared(3.111), "B used 3.11 times the bytes of A (inuse_space)");
    }
}
