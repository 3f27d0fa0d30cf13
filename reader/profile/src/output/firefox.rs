//! The Firefox Profiler's "processed profile" format, version 60: the first one whose tables are shared by all threads. Newer viewers
//! convert it themselves.
//!
//! One row per sample, at its time since the recording began; a track per thread and event. What a sample stands for is
//! its weight: timer periods, with the CPU time of its thread, or events, or milliseconds off the processor. Losses are
//! markers over the span in which they were counted.

mod axis;
mod markers;
mod meta;
mod tables;

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;

use self::axis::Axis;
use self::markers::Markers;
use self::meta::Meta;
use self::tables::{Lib, Shared, Tables};
use super::description::{Description, Writer};
use super::grouping::Grouping;
use super::sampled_thread::{SampledThread, heaviest, sampled_threads};
use crate::measure::Unit;
use crate::profile::{Profile, TimedSample};

/// The format.
pub(super) const DESCRIPTION: Description = Description::text("firefox", &["json"], Writer::Timed(write));

#[derive(Serialize)]
struct Document<'a> {
    meta: Meta,
    libs: &'a [Lib],
    shared: &'a Shared,
    threads: Vec<Thread>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Thread {
    name: String,
    is_main_thread: bool,
    process_name: String,
    process_type: &'static str,
    process_startup_time: f64,
    process_shutdown_time: Option<f64>,
    register_time: f64,
    unregister_time: Option<f64>,
    paused_ranges: [u32; 0],
    /// Viewers treat equal ones as one process; the image after an exec is another one.
    pid: String,
    tid: u32,
    show_markers_in_timeline: bool,
    samples: Samples,
    markers: Markers,
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct Samples {
    stack: Vec<Option<u32>>,
    /// Milliseconds.
    time: Vec<f64>,
    weight: Vec<Weight>,
    /// Nanoseconds; only if the weight is CPU time.
    #[serde(rename = "threadCPUDelta", skip_serializing_if = "Option::is_none")]
    thread_cpu_delta: Option<Vec<u64>>,
    weight_type: &'static str,
    length: usize,
}

/// What a sample stands for.
#[derive(Serialize)]
#[serde(untagged)]
enum Weight {
    Units(u32),
    Milliseconds(f64),
}

/// Writes a profile with its timeline for the Firefox Profiler.
fn write(profile: &Profile, _: Grouping, out: &mut dyn Write) -> io::Result<()> {
    let mut tables = Tables::new(profile);
    let sampled = sampled_threads(profile);
    let selected = heaviest(&sampled);
    let pids = pids(profile);
    let axis = Axis::new(profile);
    let mut timed_samples = samples_by_thread(profile);
    let mut threads: Vec<Thread> = sampled
        .iter()
        .map(|thread| {
            let timed_samples = timed_samples.remove(&(thread.number(), thread.event())).unwrap_or_default();
            convert(
                profile,
                thread,
                &timed_samples,
                pids[thread.thread().process as usize].clone(),
                &axis,
                &mut tables,
            )
        })
        .collect();
    if threads.is_empty() {
        // The viewer requires one.
        threads.push(without_samples(profile));
    }
    mark(profile, &sampled, selected, &axis, &mut tables, &mut threads);
    let document = Document {
        meta: Meta::new(profile, &axis, sampled.get(selected).map_or(0, SampledThread::period_ns), selected),
        libs: &tables.libs,
        shared: &tables.shared,
        threads,
    };
    serde_json::to_writer(&mut *out, &document)?;
    out.write_all(b"\n")
}

/// Adds markers for losses to the heaviest thread of their process, or else to the selected thread.
fn mark(
    profile: &Profile,
    sampled: &[SampledThread<'_>],
    selected: usize,
    axis: &Axis,
    tables: &mut Tables<'_>,
    threads: &mut [Thread],
) {
    for loss in &profile.losses {
        let of_process = |thread: &SampledThread<'_>| thread.process().info.id == loss.process;
        let own = sampled.iter().enumerate().filter(|(_, thread)| of_process(thread));
        let index = own.max_by_key(|(_, thread)| thread.rank()).map_or(selected, |(index, _)| index);
        threads[index].markers.push(loss, axis, tables);
    }
    for loss in markers::untimed(profile, axis) {
        threads[selected].markers.push(&loss, axis, tables);
    }
}

/// By thread and event.
fn samples_by_thread(profile: &Profile) -> HashMap<(u32, u8), Vec<&TimedSample>> {
    let mut threads: HashMap<(u32, u8), Vec<&TimedSample>> = HashMap::new();
    for timed in profile.timeline.iter().filter(|timed| timed.weight > 0) {
        threads.entry((timed.thread, timed.event)).or_default().push(timed);
    }
    threads
}

/// A text for each process, different ones for different images.
fn pids(profile: &Profile) -> Vec<String> {
    let mut images: HashMap<u32, u32> = HashMap::new();
    let pids = profile.processes.iter().map(|process| {
        let pid = process.info.pid;
        let image = images.entry(pid).and_modify(|image| *image += 1).or_insert(0);
        if *image == 0 { pid.to_string() } else { format!("{pid}.{image}") }
    });
    pids.collect()
}

fn convert(
    profile: &Profile,
    sampled: &SampledThread<'_>,
    timed_samples: &[&TimedSample],
    pid: String,
    axis: &Axis,
    tables: &mut Tables<'_>,
) -> Thread {
    let measure = sampled.measure();
    // For times, how many there are in a millisecond.
    let (weight_type, in_a_millisecond) = match measure.unit {
        Unit::Microsecond => ("tracing-ms", Some(1e3)),
        Unit::Nanosecond => ("tracing-ms", Some(1e6)),
        Unit::Byte => ("bytes", None),
        _ => ("samples", None),
    };
    let mut samples = Samples { weight_type, ..Samples::default() };
    let mut markers = Markers::default();
    for timed in timed_samples {
        markers.event(profile, timed, axis, tables);
        samples.stack.push(tables.stack(timed.stack));
        samples.time.push(axis.milliseconds(timed.ns));
        samples.weight.push(match in_a_millisecond {
            Some(units) => Weight::Milliseconds(f64::from(timed.weight) / units),
            None => Weight::Units(timed.weight),
        });
        samples.length += 1;
    }
    if measure.is_cpu_time() {
        let period = sampled.period_ns();
        let delta = |timed: &&TimedSample| u64::from(timed.weight).saturating_mul(period);
        samples.thread_cpu_delta = Some(timed_samples.iter().map(delta).collect());
    }
    let (process, thread) = (sampled.process(), sampled.thread());
    let first = timed_samples.first().map_or(0.0, |timed| axis.milliseconds(timed.ns));
    Thread {
        name: sampled.name() + &sampled.event_suffix(),
        is_main_thread: thread.tid == process.info.pid,
        process_name: process.name(),
        process_startup_time: axis.milliseconds(process.info.start_ns).min(first),
        register_time: first,
        tid: thread.tid,
        samples,
        markers,
        ..blank(pid)
    }
}

fn without_samples(profile: &Profile) -> Thread {
    let process = profile.processes.first();
    let pid = process.map_or(0, |process| process.info.pid);
    let name = process.map_or("no process".into(), |process| process.name());
    Thread {
        name: name.clone(),
        is_main_thread: true,
        process_name: name,
        tid: pid,
        samples: Samples { weight_type: "samples", thread_cpu_delta: Some(Vec::new()), ..Samples::default() },
        ..blank(pid.to_string())
    }
}

fn blank(pid: String) -> Thread {
    Thread {
        name: String::new(),
        is_main_thread: false,
        process_name: String::new(),
        process_type: "default",
        process_startup_time: 0.0,
        process_shutdown_time: None,
        register_time: 0.0,
        unregister_time: None,
        paused_ranges: [],
        pid,
        tid: 0,
        show_markers_in_timeline: true,
        samples: Samples::default(),
        markers: Markers::default(),
    }
}
