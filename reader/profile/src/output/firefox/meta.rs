//! `profile.meta`: the description of the profile, and what the viewer needs to draw it.

use serde::Serialize;
use serde_json::{Value, json};

use super::axis::Axis;
use super::markers::{EVENT, LOST};
use crate::output::title::{source, title};
use crate::profile::Profile;

/// The version of the format.
const PROCESSED_VERSION: u32 = 60;
/// The version of Firefox's own format, which is required but not used; any value will do.
const GECKO_VERSION: u32 = 31;
/// Nominal milliseconds between events that no clock triggers; the viewer needs a value.
const NO_INTERVAL: f64 = 1.0;
/// `profile.meta`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Meta {
    version: u32,
    preprocessed_profile_version: u32,
    product: String,
    arguments: String,
    oscpu: String,
    /// Milliseconds.
    interval: f64,
    /// Milliseconds since 1970.
    start_time: f64,
    process_type: u32,
    stackwalk: u32,
    debug: bool,
    symbolicated: bool,
    uses_only_one_stack_type: bool,
    source_code_is_not_on_searchfox: bool,
    keep_profile_thread_order: bool,
    initial_selected_threads: [usize; 1],
    categories: Value,
    marker_schema: Value,
    sample_units: Value,
    extra: Value,
}

impl Meta {
    /// The description of a profile; `selected` is the thread to show first.
    pub(super) fn new(profile: &Profile, axis: &Axis, period_ns: u64, selected: usize) -> Self {
        let session = &profile.session;
        let before = session.started_ns.saturating_sub(axis.zero_ns);
        let started = session.started_realtime_ns.saturating_sub(before);
        Meta {
            version: GECKO_VERSION,
            preprocessed_profile_version: PROCESSED_VERSION,
            product: title(profile),
            arguments: session.command.join(" "),
            oscpu: format!("Linux {}", session.kernel),
            interval: if period_ns == 0 { NO_INTERVAL } else { period_ns as f64 / 1e6 },
            start_time: started as f64 / 1e6,
            process_type: 0,
            stackwalk: 1,
            debug: false,
            symbolicated: true,
            uses_only_one_stack_type: true,
            source_code_is_not_on_searchfox: true,
            keep_profile_thread_order: true,
            initial_selected_threads: [selected],
            categories: categories(),
            marker_schema: marker_schema(),
            sample_units: json!({ "time": "ms", "eventDelay": "ms", "threadCPUDelta": "ns" }),
            extra: extra(profile),
        }
    }
}

/// The first one is the default category, and must be grey.
fn categories() -> Value {
    let category = |name, color| json!({ "name": name, "color": color, "subcategories": ["Other"] });
    json!([category("Other", "grey"), category("User", "yellow"), category("Kernel", "orange")])
}

fn marker_schema() -> Value {
    json!([{
        "name": LOST,
        "tooltipLabel": "Lost samples: {marker.data.cause}",
        "tableLabel": "{marker.data.samples} lost: {marker.data.cause}",
        "chartLabel": "{marker.data.samples} lost: {marker.data.cause}",
        "description": "Samples that were taken and did not arrive, between two readings of the counters.",
        "display": ["marker-chart", "marker-table", "timeline-overview"],
        "fields": [
            { "key": "cause", "label": "Cause", "format": "string" },
            { "key": "samples", "label": "Samples", "format": "integer" },
            { "key": "weight", "label": "Weight", "format": "integer" },
        ],
    }, {
        "name": EVENT,
        "tooltipLabel": "{marker.name}",
        "tableLabel": "{marker.data.fields}",
        "chartLabel": "{marker.data.fields}",
        "description": "An event of a tracepoint of the program's.",
        "display": ["marker-chart", "marker-table", "timeline-overview"],
        "fields": [{ "key": "fields", "label": "Fields", "format": "string" }],
    }])
}

/// Details for people.
fn extra(profile: &Profile) -> Value {
    let (session, stats) = (&profile.session, &profile.stats);
    let words = profile.weight_in_words().map_or(String::new(), |words| format!(": {words}"));
    let samples = format!("{} (weight {}{words})", profile.totals.samples, profile.totals.weight);
    let mut entries = vec![
        ("Recorded by", format!("selfwind {}", session.version)),
        ("Host", session.host.clone()),
        ("Source", source(session)),
        ("Samples", samples),
        ("Lost samples", stats.lost.to_string()),
        ("Truncated stacks", profile.totals.truncated.to_string()),
    ];
    entries.extend(profile.notes.iter().map(|note| ("Note", note.clone())));
    let entries: Vec<Value> = entries
        .into_iter()
        .map(|(label, value)| json!({ "label": label, "format": "string", "value": value }))
        .collect();
    json!([{ "label": "Recording", "entries": entries }])
}
