//! Sums over process images.

use std::collections::{BTreeMap, BTreeSet};

use super::image::Image;
use super::summary::{Detail, ProcessStats, Stats};
use crate::heap::ALLOCATION;
use crate::locks::LOCK;
use crate::mapped_memory::MAPPING;
use crate::profile_file::{Cause, Counters, ProcessFate};
use crate::source_list::{CPU, MMAP, WALL, WALL_SOURCE};
use crate::tracepoint::TRACEPOINT;

/// The sums over the images so far.
#[derive(Clone, Default)]
pub(super) struct Sums {
    pub(super) stats: Stats,
    pub(super) totals: Counters,
    /// Handler times by (high, low).
    pub(super) buckets: BTreeMap<(u64, u64), u64>,
    pub(super) missing_counters: bool,
    pub(super) images: u64,
    /// Sources of samples, and the unit of their weight.
    pub(super) clocks: BTreeSet<(String, u64)>,
    /// The clock's weights in nanoseconds, if they count periods of CPU time.
    pub(super) cpu_ns: u64,
    /// The clock's samples, and their weight. Nothing was asked of the clock in unplaced time, which counts as sampled at the full
    /// rate.
    pub(super) by_clock: (u64, u64),
}

impl Sums {
    /// Adds an image, and lists it.
    pub(super) fn add(&mut self, image: &Image, is_listed: bool) {
        let stats = &mut self.stats;
        stats.lost += add_image(&mut stats.detail, image, is_listed);
        stats.samples += image.samples;
        let of_probes: u64 = image.of_probes.iter().map(|(_, samples)| samples).sum();
        let of_clock = image.samples - of_probes;
        let of_probes = image.of_probes.iter().map(|&(number, samples)| (probe_name(number), samples));
        let of_timers = (CPU.to_owned(), image.of_thread_timers);
        let of_source = (image.source.clone(), of_clock - image.of_thread_timers);
        for (source, samples) in of_probes.chain([of_timers, of_source]).filter(|it| it.1 > 0) {
            *stats.detail.sources.entry(source).or_default() += samples;
        }
        self.by_clock.0 += of_clock - image.unplaced.samples + image.unplaced.weight;
        self.by_clock.1 += image.clock_weight;
        stats.detail.unwinds += image.unwinds;
        for cause in &image.counters.kernel {
            *stats.detail.kernel.entry(cause.name.clone()).or_default() += cause.count;
        }
        stats.weight = stats.weight.saturating_add(image.weight);
        stats.truncated += image.truncated;
        stats.processes += u64::from(!image.was_executed);
        // Threads that went through an exec are counted once: the first thread of the new image is the old one.
        let is_new = |(tid, _): &&(u32, bool)| !(image.was_executed && *tid == image.pid);
        stats.threads += image.threads.values().filter(is_new).count() as u64;
        stats.detail.threads_sampled += image.threads.values().filter(|(_, sampled)| *sampled).count() as u64;
        self.missing_counters |= image.fate.is_none();
        add_counters(&mut self.totals, &image.counters);
        for bucket in &image.counters.handler {
            *self.buckets.entry((bucket.high, bucket.low)).or_insert(0) += bucket.count;
        }
        self.images += 1;
        let clock = (image.source.clone(), image.period_ns);
        self.clocks.insert(clock);
        self.cpu_ns = self.cpu_ns.saturating_add(image.clock_weight.saturating_mul(image.period_ns));
    }
}

/// Adds one image to the totals and, if it is to be listed, to the list. Returns how many of its samples were lost.
fn add_image(detail: &mut Detail, image: &Image, is_listed: bool) -> u64 {
    let counters = &image.counters;
    let mut lost = 0;
    let mut lose = |name: &str, count: u64, weight: u64| {
        if count > 0 {
            lost += count;
            *detail.lost.entry(name.to_owned()).or_default() += count;
            *detail.lost_weight.entry(name.to_owned()).or_default() += weight;
        }
    };
    for cause in &counters.lost {
        lose(&cause.name, cause.count, cause.weight);
    }
    let unread = counters.recorded.saturating_sub(image.unwinds + counters.earlier);
    let weight = counters.recorded_weight.saturating_sub(image.recorded_weight + counters.earlier_weight);
    lose("unread", unread, weight);
    for cause in counters.skipped.iter().filter(|cause| cause.count > 0) {
        *detail.skipped.entry(cause.name.clone()).or_default() += cause.count;
    }
    let skipped = total(&counters.skipped);
    // A handler killed between its commit and its count is in the profile, so it was not cut short.
    let recorded = counters.recorded.max(image.unwinds + counters.earlier);
    let accounted = recorded + total(&counters.lost) + skipped;
    let accounting = &mut detail.accounting;
    accounting.fired += counters.fired;
    accounting.fired_weight += counters.fired_weight;
    accounting.skipped += skipped;
    accounting.earlier += counters.earlier;
    accounting.cut_short += counters.fired.saturating_sub(accounted);
    if !is_listed {
        return lost;
    }
    detail.by_process.push(ProcessStats {
        pid: image.pid,
        ppid: image.ppid,
        exe: image.exe.clone(),
        fate: fate_name(image.fate),
        samples: image.samples,
        weight: image.weight,
        truncated: image.truncated,
        fired: counters.fired,
        lost,
        note: image.note.clone(),
    });
    lost
}

/// The name of a source other than the clock, by its number in samples.
fn probe_name(number: u8) -> String {
    match number {
        ALLOCATION => "alloc".into(),
        WALL_SOURCE => WALL.into(),
        TRACEPOINT => "tp".into(),
        LOCK => "lock".into(),
        MAPPING => MMAP.into(),
        other => format!("source_{other}"),
    }
}

fn total(causes: &[Cause]) -> u64 {
    causes.iter().map(|cause| cause.count).sum()
}

fn add_counters(sum: &mut Counters, more: &Counters) {
    sum.drained += more.drained;
    sum.ring_bytes += more.ring_bytes;
    sum.gaps += more.gaps;
    sum.torn += more.torn;
    sum.violations += more.violations;
    sum.undecodable += more.undecodable;
}

fn fate_name(fate: Option<ProcessFate>) -> &'static str {
    match fate {
        Some(ProcessFate::Exited) => "exited",
        Some(ProcessFate::Executed) => "executed",
        Some(ProcessFate::Vanished) => "vanished",
        Some(ProcessFate::Running) => "running",
        None => "unknown",
    }
}
