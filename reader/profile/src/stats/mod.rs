//! Statistics of a profile: the numbers for the summary of `record` and for `stats`.
//!
//! Samples are counted in the file, losses by the processes themselves. Whether the two agree is checked here and reported, never
//! assumed.

mod copies;
mod image;
mod summary;
mod sums;
mod text;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shm_format::Skip;

pub use self::copies::{CopyStats, RecoveredStats};
use self::image::Image;
pub use self::summary::{Accounting, Detail, HandlerTime, ProcessStats, Rate, Stats};
use self::sums::Sums;
use crate::events::{self, Events};
use crate::interpreted;
use crate::locks::Joiner;
use crate::measure::{Measure, Weighed};
use crate::profile_file::{End, Event, ProcessEnd, ProcessFate, Sample, SampleRef, SessionInfo, end_name};
use crate::source_list::{self, THREAD_TIMER, WALL_SOURCE};

/// Maximum number of different texts per topic.
const SETTINGS_LIMIT: usize = 20;

/// While recording, the number of ended images that are kept, because a few late samples may follow.
const ENDED_KEPT: usize = 1024;

/// Sums up events.
#[derive(Default)]
pub struct Tally {
    images: BTreeMap<u32, Image>,
    /// Images that have ended are added up instead of being kept.
    is_flat: bool,
    ended: VecDeque<u32>,
    sums: Sums,
    ends: Vec<(u8, u64)>,
    frames: u64,
    session: SessionInfo,
    events: Events,
    /// Samples and weight by event.
    weights: Vec<(u64, u64)>,
    last_ns: u64,
    end: Option<End>,
    settings: BTreeMap<String, BTreeSet<String>>,
    copy: Option<CopyStats>,
    /// Waits for locks, with their delay and the event that counts it, and the ends of waits.
    at_locks: Joiner<Option<(u64, u8)>>,
}

impl Tally {
    /// For a recorder, which may see any number of processes: ended images are added up and dropped.
    pub fn flat() -> Self {
        Self { is_flat: true, ..Self::default() }
    }

    /// Adds up and drops images that ended some time ago.
    fn forget(&mut self, end: &ProcessEnd) {
        if !self.is_flat || end.fate == ProcessFate::Running {
            return;
        }
        self.ended.push_back(end.process);
        if self.ended.len() > ENDED_KEPT
            && let Some(image) = self.ended.pop_front().and_then(|id| self.images.remove(&id))
        {
            self.sums.add(&image, false);
        }
    }

    /// Counts one event.
    pub fn add(&mut self, event: &Event) {
        match event {
            Event::Session(session) => {
                self.session = session.clone();
                self.events = self.events_of(&BTreeSet::new()).with_learnt_of(&mut self.events);
            }
            Event::Process(info) => {
                let parent = info.parent.and_then(|parent| self.images.get(&parent));
                let was_executed = parent.is_some_and(|parent| parent.pid == info.pid);
                let image = self.image(info.id);
                image.introduce(info);
                image.was_executed = was_executed;
                // The first process says what it counts.
                if self.weights.is_empty() && (self.images.len() == 1 || source_list::is_probe(&info.source))
                {
                    let known = BTreeSet::from([(info.source.clone(), info.period_ns)]);
                    self.events = self.events_of(&known).with_learnt_of(&mut self.events);
                }
            }
            Event::Thread(thread) => {
                let image = self.image(thread.process);
                image.threads.entry(thread.seq).or_default().0 = thread.tid;
                image.last = None;
            }
            Event::Sample(sample) => self.count(sample, sample.frames.len(), sample.frames.first().copied()),
            Event::Counters(at) => {
                self.last_ns = self.last_ns.max(at.ns);
                self.image(at.process).counters = at.counters.clone();
            }
            Event::ProcessEnd(end) => {
                self.last_ns = self.last_ns.max(end.ns);
                let image = self.image(end.process);
                image.counters = end.counters.clone();
                image.fate = Some(end.fate);
                self.forget(end);
            }
            Event::End(end) => self.end = Some(*end),
            Event::Setting(setting) => {
                let values = self.settings.entry(setting.key.clone()).or_default();
                if values.len() < SETTINGS_LIMIT {
                    values.insert(setting.value.clone());
                }
            }
            Event::Comparison(comparison) => self.copy.get_or_insert_default().add(comparison),
            Event::KernelSymbol(_) => {}
            Event::Module(_) | Event::ModuleGone(_) | Event::ThreadName(_) | Event::ThreadEnd(_) => {}
            Event::LiveBlocks(_) | Event::LiveMappings(_) => self.events.learn(event),
            Event::Generated(_) | Event::Function(_) | Event::Tracepoint(_) => {}
        }
    }

    fn image(&mut self, id: u32) -> &mut Image {
        self.images.entry(id).or_default()
    }

    /// Counts a sample. The values of allocations in use are known if the live blocks were read before.
    pub fn sample(&mut self, SampleRef { sample, frames, .. }: SampleRef<'_>) {
        self.count(sample, frames.len(), frames.last().copied());
    }

    fn count(&mut self, sample: &Sample, depth: usize, leaf: Option<u64>) {
        let (parts, kernel, weight) = match &sample.kernel[..] {
            // Most have none.
            [] if sample.weight > 0 => (sample.events(), 0, u64::from(sample.weight)),
            [] => (0, 0, 0),
            _ => sample.parts().fold((0, 0, 0), |(parts, kernel, weight), part| {
                (parts + 1, kernel + part.kernel.len(), weight + u64::from(part.weight))
            }),
        };
        let main = self.events.main();
        let mut main_weight = 0;
        self.events.counts(sample, |counted| {
            weigh(&mut self.weights, counted.event, counted.samples, counted.weight);
            main_weight += if usize::from(counted.event) == main { counted.weight } else { 0 };
        });
        if self.events.is_of_locks(sample) {
            self.at_lock(sample);
        }
        count(&mut self.ends, sample.end, parts);
        self.frames += depth as u64 * parts + kernel as u64;
        self.last_ns = self.last_ns.max(sample.ns);
        let image = self.images.entry(sample.process).or_default();
        let thread = (sample.thread_seq, sample.tid);
        if image.last.replace(thread) != Some(thread) {
            image.threads.insert(sample.thread_seq, (sample.tid, true));
        }
        image.samples += parts;
        // Samples of the wall clock are not records of the process.
        let is_record = sample.source != WALL_SOURCE;
        image.unwinds += if !sample.repeated && is_record { sample.events() } else { 0 };
        image.recorded_weight += if is_record { weight } else { 0 };
        image.weight = image.weight.saturating_add(main_weight);
        match self.events.is_of_clock(sample) {
            true => {
                image.clock_weight += weight;
                if leaf.is_some_and(interpreted::is_unplaced) {
                    image.unplaced.samples += parts;
                    image.unplaced.weight += weight;
                } else if sample.source == THREAD_TIMER {
                    image.of_thread_timers += parts;
                }
            }
            false => count(&mut image.of_probes, sample.source, parts),
        }
        image.truncated += if sample.end == unwind::End::Root as u8 { 0 } else { parts };
    }

    /// Counts the wait of others for the thread that released a lock, once both the wait and its end are known.
    fn at_lock(&mut self, sample: &Sample) {
        let Self { at_locks, events, weights, .. } = self;
        at_locks.take(
            sample,
            || events.wait(sample),
            |wait, _| {
                if let Some((delay, event)) = *wait {
                    weigh(weights, event, 1, delay);
                }
            },
        );
    }

    /// The sums. `bytes` is the size of the profile.
    pub fn finish(&self, bytes: u64) -> Stats {
        let mut sums = self.sums.clone();
        for image in self.images.values() {
            let has_ended = !matches!(image.fate, None | Some(ProcessFate::Running));
            sums.add(image, !(self.is_flat && has_ended));
        }
        let Sums { mut stats, totals, buckets, missing_counters, images, clocks, cpu_ns, by_clock } = sums;
        stats.bytes = bytes;
        let detail = &mut stats.detail;
        detail.complete = self.end.is_some();
        detail.duration_ns =
            self.end.map_or(self.last_ns.saturating_sub(self.session.started_ns), |end| end.wall_ns);
        detail.exit_status = self.end.and_then(|end| end.status);
        detail.frequency = self.session.frequency;
        let events = self.events_of(&clocks);
        detail.weights = self.weights(&events);
        detail.event = detail.weights.get(events.main()).map(|main| main.event.clone()).unwrap_or_default();
        if events.of_clock().iter().all(Measure::is_cpu_time) {
            detail.cpu_ns = cpu_ns;
        }
        detail.accounting.adds_up = (self.end.is_some() && !missing_counters)
            .then(|| adds_up(detail.unwinds, stats.lost, &detail.accounting));
        for &(end, count) in &self.ends {
            *detail.ends.entry(end_name(end).to_owned()).or_default() += count;
        }
        detail.samples_per_unwind = ratio(stats.samples, detail.unwinds);
        detail.settings = self.settings.clone();
        detail.copy = self.copy.clone();
        detail.rate = rate(self.session.frequency, by_clock, &detail.skipped);
        detail.handler_ns = handler_time(&buckets);
        detail.ring_bytes_per_sample = ratio(totals.ring_bytes, totals.drained);
        detail.ring_records = totals.drained;
        detail.frames_per_sample = ratio(self.frames, stats.samples);
        detail.images = images;
        (detail.gaps, detail.torn, detail.violations) = (totals.gaps, totals.torn, totals.violations);
        detail.undecodable = totals.undecodable;
        stats
    }

    /// The events, if processes have described their sources.
    fn events_of(&self, clocks: &BTreeSet<(String, u64)>) -> Events {
        Events::new(&self.session, clocks.iter().map(|(source, period_ns)| (source, *period_ns)))
    }

    /// Name, unit, samples and weight of each event.
    fn weights(&self, events: &Events) -> Vec<Weighed> {
        let mut measures = events.measures().to_vec();
        // Samples of unknown sources count, too.
        measures.resize(measures.len().max(self.weights.len()), events::UNCLAIMED.clone());
        let weighed = |(event, measure): (usize, &Measure)| {
            let (samples, weight) = self.weights.get(event).copied().unwrap_or_default();
            measure.weighed(samples, weight)
        };
        measures.iter().enumerate().map(weighed).collect()
    }
}

/// Adds samples of an event to the samples and weights by event.
fn weigh(weights: &mut Vec<(u64, u64)>, event: u8, samples: u64, weight: u64) {
    let event = usize::from(event);
    if weights.len() <= event {
        weights.resize(event + 1, (0, 0));
    }
    let sum = &mut weights[event];
    *sum = (sum.0 + samples, sum.1.saturating_add(weight));
}

/// Adds to the count of a number. There are few numbers.
fn count(counts: &mut Vec<(u8, u64)>, number: u8, more: u64) {
    match counts.iter_mut().find(|(known, _)| *known == number) {
        Some((_, count)) => *count += more,
        None => counts.push((number, more)),
    }
}

fn adds_up(unwinds: u64, lost: u64, accounting: &Accounting) -> bool {
    accounting.fired == unwinds + lost + accounting.skipped + accounting.earlier + accounting.cut_short
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64 * 10.0).round() / 10.0 }
}

/// `buckets` by (high, low).
fn handler_time(buckets: &BTreeMap<(u64, u64), u64>) -> HandlerTime {
    let count: u64 = buckets.values().sum();
    let quantile = |share: f64| {
        let rank = (count as f64 * share).ceil() as u64;
        let mut below = 0;
        buckets
            .iter()
            .find(|(_, n)| {
                below += **n;
                below >= rank
            })
            .map_or(0, |((high, _), _)| *high)
    };
    HandlerTime { count, p50: quantile(0.5), p99: quantile(0.99), max: quantile(1.0) }
}

/// `samples` of the clock, and their weight.
fn rate(frequency: u32, (samples, weight): (u64, u64), skipped: &BTreeMap<String, u64>) -> Rate {
    let asked = f64::from(frequency);
    let delivered = if weight == 0 { 0.0 } else { (asked * samples as f64 / weight as f64).round() };
    let left_out = skipped.get(Skip::OverLimit.name()).copied().unwrap_or(0);
    Rate { asked, delivered, left_out }
}
