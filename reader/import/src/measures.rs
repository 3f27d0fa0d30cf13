//! What the events of a file count, and the weight of a sample.
//!
//! perf adds up periods. A unit of weight is one period if the period is fixed (it always is for clocks), otherwise one
//! event. So weight times unit is what `perf report` shows as the event count.

use linux_perf_event_reader::{PerfEventType, SamplingPolicy, SoftwareCounterType};
use selfwind_profile::measure::SECOND_NS;

use crate::header::Attribute;

/// What one event counts.
pub(crate) struct Measure {
    /// Number in the profile; `None` if the event has no samples, only other records.
    pub(crate) event: Option<u8>,
    /// Number of events or nanoseconds per unit of weight.
    pub(crate) unit: u64,
    is_clock: bool,
    name: String,
}

/// The measures of all attributes; `None` if there are too many events.
pub(crate) fn measures(attributes: &[Attribute]) -> Option<Vec<Measure>> {
    let mut measures = Vec::new();
    let mut next = 0u8;
    for attribute in attributes {
        let mut measure = Measure::of(attribute);
        if !is_dummy(attribute) || attributes.len() == 1 {
            measure.event = Some(next);
            next = next.checked_add(1)?;
        }
        measures.push(measure);
    }
    Some(measures)
}

/// As `record -e` would name them.
pub(crate) fn source(measures: &[Measure]) -> String {
    let events = measures.iter().filter(|measure| measure.event.is_some());
    let names: Vec<String> = events.map(|measure| format!("{}@{}", measure.name, measure.unit)).collect();
    format!("perf:{}", names.join(","))
}

/// CPU time per unit of the first event's weight; 0 if that event does not measure CPU time.
pub(crate) fn period_ns(measures: &[Measure]) -> u64 {
    let first = measures.iter().find(|measure| measure.event.is_some());
    first.filter(|measure| measure.is_clock).map_or(0, |measure| measure.unit)
}

/// The requested number of samples per second; 0 if there was none.
pub(crate) fn frequency(attributes: &[Attribute]) -> u32 {
    let rates = attributes.iter().filter(|attribute| !is_dummy(attribute)).map(|it| it.attr.sampling_policy);
    let rate = rates.clone().find_map(|policy| match policy {
        SamplingPolicy::Frequency(frequency) => Some(frequency),
        _ => None,
    });
    rate.unwrap_or(0).try_into().unwrap_or(u32::MAX)
}

fn is_dummy(attribute: &Attribute) -> bool {
    matches!(attribute.attr.type_, PerfEventType::Software(SoftwareCounterType::Dummy))
}

impl Measure {
    fn of(attribute: &Attribute) -> Self {
        let clock = match attribute.attr.type_ {
            PerfEventType::Software(SoftwareCounterType::CpuClock) => Some("cpu-clock"),
            PerfEventType::Software(SoftwareCounterType::TaskClock) => Some("task-clock"),
            _ => None,
        };
        let unit = match attribute.attr.sampling_policy {
            SamplingPolicy::Period(period) => period.get(),
            // The period of a clock never changes.
            SamplingPolicy::Frequency(frequency) if clock.is_some() => SECOND_NS / frequency.max(1),
            _ => 1,
        };
        let told = attribute.name.as_deref().unwrap_or("event");
        // Names become items of a list, each followed by its unit.
        let name = clock.map_or_else(|| told.replace([',', '@'], ";"), str::to_owned);
        Self { event: None, unit: unit.max(1), is_clock: clock.is_some(), name }
    }

    /// The weight of a sample with this period.
    pub(crate) fn weight(&self, period: Option<u64>) -> u64 {
        let period = period.unwrap_or(self.unit);
        (period / self.unit).saturating_add(u64::from(period % self.unit > self.unit / 2)).max(1)
    }
}
