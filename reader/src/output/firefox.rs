//! The Firefox Profiler's "processed profile" format, version 60: the first one whose tables all threads
//! share. Newer viewers bring it up to date themselves.
//!
//! The time axis is the CPU time of each thread, stack after stack: a profile in memory keeps no times of
//! samples, so its size depends on the distinct stacks only. The document says so in its details.

mod meta;
mod tables;

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;

use self::meta::{LostMarker, Meta};
use self::tables::{Lib, Shared, Tables};
use super::sampled_thread::{SampledThread, heaviest, sampled_threads};
use crate::profile::Profile;

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
    /// Viewers take equal ones for one process; an image after exec is another.
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
    weight: Vec<u64>,
    weight_type: &'static str,
    length: usize,
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct Markers {
    data: Vec<LostMarker>,
    name: Vec<u32>,
    start_time: Vec<f64>,
    end_time: Vec<f64>,
    phase: Vec<u32>,
    category: Vec<u32>,
    length: usize,
}

/// Writes a profile for the Firefox Profiler.
pub(super) fn write(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let mut tables = Tables::new(profile);
    let sampled = sampled_threads(profile);
    let selected = heaviest(&sampled);
    let pids = pids(profile);
    let mut threads: Vec<Thread> = sampled
        .iter()
        .map(|thread| convert(thread, pids[thread.thread().process as usize].clone(), &mut tables))
        .collect();
    if threads.is_empty() {
        // The viewer needs one.
        threads.push(without_samples(profile));
    }
    let end = end_of(&threads[selected].samples, sampled.get(selected));
    threads[selected].markers = lost_markers(profile, end, &mut tables);
    let document = Document {
        meta: Meta::new(profile, sampled.get(selected).map_or(0, SampledThread::period_ns), selected),
        libs: &tables.libs,
        shared: &tables.shared,
        threads,
    };
    serde_json::to_writer(&mut *out, &document)?;
    out.write_all(b"\n")
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

fn convert(sampled: &SampledThread<'_>, pid: String, tables: &mut Tables<'_>) -> Thread {
    let mut samples = Samples { weight_type: "samples", ..Samples::default() };
    let mut before = 0;
    for bucket in sampled.buckets() {
        samples.stack.push(tables.stack(bucket.stack));
        samples.time.push(milliseconds(sampled, before));
        samples.weight.push(bucket.weight);
        samples.length += 1;
        before += bucket.weight;
    }
    let (process, thread) = (sampled.process(), sampled.thread());
    Thread {
        name: sampled.name(),
        is_main_thread: thread.tid == process.info.pid,
        process_name: process.name(),
        tid: thread.tid,
        samples,
        ..blank(pid)
    }
}

/// Milliseconds that a weight stands for.
fn milliseconds(sampled: &SampledThread<'_>, weight: u64) -> f64 {
    // Time must go on even if nobody knows how fast.
    weight as f64 * sampled.period_ns().max(1) as f64 / 1e6
}

fn end_of(samples: &Samples, sampled: Option<&SampledThread<'_>>) -> f64 {
    let total = samples.weight.iter().sum();
    sampled.map_or(0.0, |sampled| milliseconds(sampled, total))
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
        samples: Samples { weight_type: "samples", ..Samples::default() },
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

/// One marker for each cause of losses, over all the time: when they happened is not known.
fn lost_markers(profile: &Profile, end: f64, tables: &mut Tables<'_>) -> Markers {
    let mut markers = Markers::default();
    for marker in meta::lost(profile) {
        markers.data.push(marker);
        markers.name.push(tables.text(meta::LOST));
        markers.start_time.push(0.0);
        markers.end_time.push(end);
        markers.phase.push(meta::INTERVAL);
        markers.category.push(tables::OTHER);
        markers.length += 1;
    }
    markers
}
