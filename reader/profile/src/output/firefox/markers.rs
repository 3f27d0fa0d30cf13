//! Markers: for lost samples, and for tracepoint events with their fields.

use serde::Serialize;

use super::axis::Axis;
use super::tables::{self, Tables};
use crate::profile::{Loss, Profile, TimedSample};

/// Name and type of the markers.
pub(super) const LOST: &str = "Lost samples";
/// Type of the markers of events.
pub(super) const EVENT: &str = "Tracepoint";
/// A marker at one time.
const INSTANT: u32 = 0;
/// A marker with a start and an end.
const INTERVAL: u32 = 1;

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct Markers {
    data: Vec<Data>,
    name: Vec<u32>,
    start_time: Vec<f64>,
    end_time: Vec<Option<f64>>,
    phase: Vec<u32>,
    category: Vec<u32>,
    length: usize,
}

/// The data of a marker.
#[derive(Serialize)]
#[serde(untagged)]
enum Data {
    /// Samples lost for one cause.
    Lost { r#type: &'static str, cause: String, samples: u64, weight: u64 },
    /// The fields of an event, as text.
    Event { r#type: &'static str, fields: String },
}

impl Markers {
    /// Losses, over the span in which they were counted.
    pub(super) fn push(&mut self, loss: &Loss, axis: &Axis, tables: &mut Tables<'_>) {
        let (cause, samples, weight) = (loss.cause.clone(), loss.samples, loss.weight);
        self.data.push(Data::Lost { r#type: LOST, cause, samples, weight });
        self.name.push(tables.text(LOST));
        self.start_time.push(axis.milliseconds(loss.from_ns));
        self.end_time.push(Some(axis.milliseconds(loss.until_ns)));
        self.phase.push(INTERVAL);
        self.category.push(tables::OTHER);
        self.length += 1;
    }

    /// An event of a tracepoint, if it has fields.
    pub(super) fn event(
        &mut self,
        profile: &Profile,
        timed: &TimedSample,
        axis: &Axis,
        tables: &mut Tables<'_>,
    ) {
        let Some(carried) = profile.tracepoints.carried(timed.fields) else { return };
        let fields: Vec<String> =
            carried.fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        self.data.push(Data::Event { r#type: EVENT, fields: fields.join(" ") });
        self.name.push(tables.text(&carried.event));
        self.start_time.push(axis.milliseconds(timed.ns));
        self.end_time.push(None);
        self.phase.push(INSTANT);
        self.category.push(tables::OTHER);
        self.length += 1;
    }
}

/// Losses that only the totals contain, not the counters over time: a marker over the whole recording.
pub(super) fn untimed(profile: &Profile, axis: &Axis) -> Vec<Loss> {
    let detail = &profile.stats.detail;
    let rest = detail.lost.iter().map(|(cause, &samples)| {
        let timed = profile.losses.iter().filter(|loss| loss.cause == *cause);
        let (told, told_weight) = timed.fold((0, 0), |sum, loss| (sum.0 + loss.samples, sum.1 + loss.weight));
        let weight = detail.lost_weight.get(cause).copied().unwrap_or(0);
        Loss {
            process: 0,
            from_ns: axis.zero_ns,
            until_ns: axis.end_ns,
            cause: cause.clone(),
            samples: samples.saturating_sub(told),
            weight: weight.saturating_sub(told_weight),
        }
    });
    rest.filter(|loss| loss.samples > 0).collect()
}
