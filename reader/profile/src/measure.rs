//! What the weights of a profile count: periods of CPU time, off-CPU time, kernel events and others.
//!
//! Every output labels its numbers by this, so that a count of page faults is never shown as seconds.

use std::borrow::Cow;

use serde::Serialize;

use crate::digits::grouped;
use crate::heap::HeapValue;
use crate::kernel_event::{self, OFF_PROCESSOR_UNIT_NS};
use crate::locks::LockValue;
use crate::mapped_memory;

/// One second in nanoseconds.
pub const SECOND_NS: u64 = 1_000_000_000;

/// What a unit of weight is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A period of CPU time, in nanoseconds; `None`: as reported by each process.
    CpuPeriod(Option<u64>),
    /// A microsecond off the CPU, or of what the measure is named after.
    Microsecond,
    /// A nanosecond of waiting.
    Nanosecond,
    /// A number of events.
    Events(u64),
    /// A byte of allocated memory.
    Byte,
    /// A sample that represents an unknown number of events.
    Sample,
}

/// What one event of a recording counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measure {
    /// A short name: `cpu`, `offcpu`, or that of the event.
    pub name: Cow<'static, str>,
    /// What a unit of weight is.
    pub unit: Unit,
}

/// CPU time in periods of each process.
pub static CPU: Measure = Measure { name: Cow::Borrowed("cpu"), unit: Unit::CpuPeriod(None) };

/// A measure and its weight in a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Weighed {
    /// The name of the measure.
    pub event: String,
    /// What a unit of weight is.
    pub unit: &'static str,
    /// Samples.
    pub samples: u64,
    /// The weight.
    pub weight: u64,
    /// The same in words.
    #[serde(skip)]
    pub words: String,
}

impl Weighed {
    /// True if the weight is CPU time.
    pub fn is_cpu_time(&self) -> bool {
        self.unit == PERIODS
    }
}

/// The unit of CPU time.
const PERIODS: &str = "periods";

impl Measure {
    /// The measure of a clock without a list of events. `clock` is its name in the session, `own` and `period_ns` are source and period
    /// reported by a process.
    pub(crate) fn of_clock(clock: &str, own: &str, period_ns: Option<u64>) -> Measure {
        match period_ns.filter(|_| own == "perf") {
            _ if clock == "offcpu" => Measure::off_processor(),
            Some(OFF_PROCESSOR_UNIT_NS) => Measure::off_processor(),
            Some(0) => Measure { name: "events".into(), unit: Unit::Events(1) },
            _ => CPU.clone(),
        }
    }

    /// That of events of tracepoints.
    pub(crate) fn of_tracepoints() -> Measure {
        Measure { name: "tracepoints".into(), unit: Unit::Events(1) }
    }

    /// That of a value of sampled allocations.
    pub(crate) fn of_heap(value: HeapValue) -> Measure {
        Measure { name: value.name().into(), unit: Self::unit_of(value) }
    }

    /// That of a value of mappings.
    pub(crate) fn of_mappings(value: HeapValue) -> Measure {
        Measure { name: mapped_memory::name(value).into(), unit: Self::unit_of(value) }
    }

    fn unit_of(value: HeapValue) -> Unit {
        match value {
            HeapValue::AllocObjects | HeapValue::InuseObjects => Unit::Events(1),
            HeapValue::AllocSpace | HeapValue::InuseSpace => Unit::Byte,
        }
    }

    /// That of the wall clock.
    pub(crate) fn of_wall() -> Measure {
        Measure { name: "wall".into(), unit: Unit::Microsecond }
    }

    /// That of a value of waits for locks.
    pub(crate) fn of_locks(value: LockValue) -> Measure {
        let unit = match value {
            LockValue::Contentions => Unit::Events(1),
            LockValue::Delay | LockValue::HeldDelay => Unit::Nanosecond,
        };
        Measure { name: value.name().into(), unit }
    }

    fn off_processor() -> Measure {
        Measure { name: "offcpu".into(), unit: Unit::Microsecond }
    }

    /// `NAME` or `NAME@PERIOD`, as `record -e` names it.
    pub(crate) fn of_event(text: &str, frequency: u32) -> Measure {
        let (name, period) =
            text.split_once('@').map_or((text, None), |(name, period)| (name, period.parse().ok()));
        let unit = match (kernel_event::rate_of(name), period) {
            (kernel_event::Rate::Clock, None) => {
                Unit::CpuPeriod(Some(1_000_000_000 / u64::from(frequency.max(1))))
            }
            (kernel_event::Rate::Clock, Some(ns)) => Unit::CpuPeriod(Some(ns)),
            (kernel_event::Rate::Adapted, None) => Unit::Sample,
            (_, events) => Unit::Events(events.unwrap_or(1)),
        };
        Measure { name: name.to_owned().into(), unit }
    }

    /// The name of the unit of weight.
    pub(crate) fn unit_name(&self) -> &'static str {
        match self.unit {
            Unit::CpuPeriod(_) => PERIODS,
            Unit::Microsecond => "microseconds",
            Unit::Nanosecond => "nanoseconds",
            Unit::Byte => "bytes",
            Unit::Events(1) => "count",
            Unit::Events(_) | Unit::Sample => "samples",
        }
    }

    /// True if weights are CPU time.
    pub fn is_cpu_time(&self) -> bool {
        matches!(self.unit, Unit::CpuPeriod(_))
    }

    /// True if weights are levels at the end of the recording, such as memory in use, instead of what happened during it.
    pub fn is_level(&self) -> bool {
        let is_named = |value: HeapValue| [value.name(), mapped_memory::name(value)].contains(&&*self.name);
        [HeapValue::InuseObjects, HeapValue::InuseSpace].into_iter().any(is_named)
    }

    /// With the weight that it has in a profile.
    pub fn weighed(&self, samples: u64, weight: u64) -> Weighed {
        let (event, words) = (self.name.to_string(), self.describe(weight));
        Weighed { event, unit: self.unit_name(), samples, weight, words }
    }

    /// A weight in words. CPU time is given in periods.
    pub fn describe(&self, weight: u64) -> String {
        let name = &self.name;
        match self.unit {
            Unit::CpuPeriod(_) => format!("{} periods of CPU time", grouped(weight)),
            Unit::Microsecond if name == "offcpu" => format!("{} us off the CPU", grouped(weight)),
            Unit::Microsecond => format!("{} us, {name}", grouped(weight)),
            Unit::Events(events) => format!("{} {name}", grouped(weight.saturating_mul(events))),
            Unit::Nanosecond => format!("{} ns, {name}", grouped(weight)),
            Unit::Byte => format!("{} bytes, {name}", grouped(weight)),
            Unit::Sample => format!("{} samples of {name}", grouped(weight)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Events;
    use crate::profile_file::SessionInfo;

    fn measures(source: &str, frequency: u32, processes: &[(&str, u64)]) -> Vec<Measure> {
        let session = SessionInfo { source: source.into(), frequency, ..SessionInfo::default() };
        Events::new(&session, processes.iter().copied()).measures().to_vec()
    }

    #[test]
    fn a_recording_says_what_it_counts() {
        let units = |source, frequency, processes: &[_]| {
            let measures = measures(source, frequency, processes);
            measures.into_iter().map(|measure| (measure.name.into_owned(), measure.unit)).collect::<Vec<_>>()
        };
        let cpu = [("cpu".to_owned(), Unit::CpuPeriod(None))];
        assert_eq!(units("auto", 99, &[("cpu", 10_000_000)]), cpu);
        assert_eq!(units("perf", 99, &[("perf", 10_000_000)]), cpu);
        let off = [("offcpu".to_owned(), Unit::Microsecond)];
        assert_eq!(units("offcpu", 0, &[]), off);
        // A running process, whose source was not chosen by the recorder.
        assert_eq!(units("auto", 99, &[("perf", 1000)]), off);
        assert_eq!(units("auto", 99, &[("perf", 0)]), [("events".to_owned(), Unit::Events(1))]);
        let several = units("perf:page-faults,cs@10,task-clock,cycles", 1000, &[]);
        let expected = [
            ("page-faults", Unit::Events(1)),
            ("cs", Unit::Events(10)),
            ("task-clock", Unit::CpuPeriod(Some(1_000_000))),
            ("cycles", Unit::Sample),
        ];
        assert_eq!(several, expected.map(|(name, unit)| (name.to_owned(), unit)));
        assert_eq!(measures("perf:sched:sched_switch", 0, &[])[0].name, "sched:sched_switch");
    }

    #[test]
    fn weights_in_words() {
        let told =
            |source| measures(source, 99, &[]).iter().map(|measure| measure.describe(5)).collect::<Vec<_>>();
        assert_eq!(told("offcpu"), ["5 us off the CPU"]);
        assert_eq!(told("perf:faults,cs@10"), ["5 faults", "50 cs"]);
        assert_eq!(told("perf:cycles"), ["5 samples of cycles"]);
    }
}
