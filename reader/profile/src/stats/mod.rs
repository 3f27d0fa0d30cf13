//! Statistics of a profile: the numbers for the summary of `record` and for `stats`.
//!
//! Samples are counted in the file, losses by the processes themselves. Whether the two agree is checked here and reported, never
//! assumed.

mod copies;
mod sums;
mod text;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};
use shm_format::Skip;

pub use self::copies::{CopyStats, RecoveredStats};
use self::sums::Sums;
use crate::events::{self, Events};
use crate::interpreted;
use crate::locks::Joiner;
use crate::measure::{Measure, Weighed};
use crate::profile_file::{
    Counters, End, Event, ProcessEnd, ProcessFate, ProcessInfo, Sample, SampleRef, SessionInfo, end_name,
};
use crate::source_list::{self, THREAD_TIMER, WALL_SOURCE};

/// The statistics of a profile, as printed by `stats --json`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    /// Samples in the profile.
    pub samples: u64,
    /// Weight of the main event, in timer periods or its unit: the total of every output.
    pub weight: u64,
    /// Samples that were taken but lost, for any cause.
    pub lost: u64,
    /// Samples whose stack is incomplete.
    pub truncated: u64,
    /// Threads seen.
    pub threads: u64,
    /// Processes seen; one that executes another program stays one.
    pub processes: u64,
    /// Size of the profile.
    pub bytes: u64,
    /// Everything else.
    pub detail: Detail,
}

/// Detailed statistics.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Detail {
    /// The recording ended regularly. Otherwise its recorder was killed, and the last counters are older than the last samples.
    pub complete: bool,
    /// Duration of the recording in nanoseconds, as far as known.
    pub duration_ns: u64,
    /// Exit status of the command, as a shell reports it.
    pub exit_status: Option<i32>,
    /// Requested samples per second of CPU time.
    pub frequency: u32,
    /// How often samples were taken.
    pub rate: Rate,
    /// CPU time that the samples represent, in nanoseconds; 0 if they represent anything else.
    pub cpu_ns: u64,
    /// Samples and weight of each event. The weight above is that of one of them.
    pub weights: Vec<Weighed>,
    /// The name of that event.
    pub event: String,
    /// Whether everything that fired is accounted for.
    pub accounting: Accounting,
    /// Lost samples by cause. `unread`: counted as recorded, not in the profile (overwritten, torn, set aside).
    pub lost: BTreeMap<String, u64>,
    /// Weight of lost samples by cause.
    pub lost_weight: BTreeMap<String, u64>,
    /// Skipped samples by cause.
    pub skipped: BTreeMap<String, u64>,
    /// Stacks by the reason why their walk ended.
    pub ends: BTreeMap<String, u64>,
    /// Time in the handler.
    pub handler_ns: HandlerTime,
    /// Mean size of a record in the pool, in bytes, including its header.
    pub ring_bytes_per_sample: f64,
    /// Number of records drained; a sample may have several.
    pub ring_records: u64,
    /// Mean number of frames of a stack.
    pub frames_per_sample: f64,
    /// Samples by source.
    pub sources: BTreeMap<String, u64>,
    /// Number of walks. Kernel events before one walk share its stack.
    pub unwinds: u64,
    /// Samples per walk.
    pub samples_per_unwind: f64,
    /// What became of the kernel's events, by name: `events = exact + restarted + deeper + overhead + blocked +
    /// unmatched + unanswered + not_waiting`, and `lost` more.
    pub kernel: BTreeMap<String, u64>,
    /// Comparison of stack copies with the threads' own walks (`--unwind both`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy: Option<CopyStats>,
    /// Notes and settings of agents, by key.
    pub settings: BTreeMap<String, BTreeSet<String>>,
    /// Process images: each exec makes a new one.
    pub images: u64,
    /// Threads with at least one sample.
    pub threads_sampled: u64,
    /// Gaps in the sequence numbers of threads.
    pub gaps: u64,
    /// Records that were never finished.
    pub torn: u64,
    /// Chunks set aside because their contents break the format.
    pub violations: u64,
    /// Stacks that refer to a missing one.
    pub undecodable: u64,
    /// All process images; while recording only those still running.
    pub by_process: Vec<ProcessStats>,
}

/// Samples per second of CPU time, if samples stand for time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Rate {
    /// The requested rate.
    pub asked: f64,
    /// The actual rate.
    pub delivered: f64,
    /// Ticks skipped because of `--max-overhead`.
    pub left_out: u64,
}

/// `fired = unwinds + lost + skipped + earlier + cut_short`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Accounting {
    /// How often a handler ran for a sample.
    pub fired: u64,
    /// The timer periods that they stand for.
    pub fired_weight: u64,
    /// Skipped samples, for any cause.
    pub skipped: u64,
    /// Samples recorded before this recording began, and overwritten since.
    pub earlier: u64,
    /// Handlers that the end of their process cut short.
    pub cut_short: u64,
    /// The equation holds. Null when the recorder was killed: the last counters are too old to tell.
    pub adds_up: Option<bool>,
}

/// Time in the handler in nanoseconds, from a histogram: the upper bounds of buckets, at most a quarter too high.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HandlerTime {
    /// Number of handler runs.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Maximum.
    pub max: u64,
}

/// A process image.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ProcessStats {
    /// Process id.
    pub pid: u32,
    /// Process id of the parent.
    pub ppid: u32,
    /// The executable.
    #[serde(serialize_with = "as_text")]
    pub exe: PathBuf,
    /// How it ended: exited, executed, vanished, running, unknown.
    pub fate: &'static str,
    /// Samples in the profile.
    pub samples: u64,
    /// Weight of those of the main event.
    pub weight: u64,
    /// Samples with an incomplete stack.
    pub truncated: u64,
    /// How often its handler ran for a sample.
    pub fired: u64,
    /// Lost samples, which are not in the profile.
    pub lost: u64,
    /// Notes of the agent about its start.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// A path as text: it need not be UTF-8, but JSON must.
fn as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// Maximum number of different texts per topic.
const SETTINGS_LIMIT: usize = 20;

/// While recording, the number of ended images that are kept, because a few late samples may follow.
const ENDED_KEPT: usize = 1024;

/// Samples of CPU time before the sampling began or at the end of a thread.
#[derive(Default)]
struct Unplaced {
    samples: u64,
    weight: u64,
}

/// A process image. There may be very many, so only what is shown is kept.
#[derive(Default)]
struct Image {
    pid: u32,
    ppid: u32,
    parent: Option<u32>,
    /// Its parent is the same process before an exec.
    was_executed: bool,
    exe: PathBuf,
    source: String,
    period_ns: u64,
    note: String,
    samples: u64,
    /// Samples that timers triggered, perhaps in place of the image's source.
    of_thread_timers: u64,
    /// Samples that the clock did not trigger, by number of their source.
    of_probes: Vec<(u8, u64)>,
    unwinds: u64,
    /// Weight of the main event's samples.
    weight: u64,
    /// Weight of the clock's samples.
    clock_weight: u64,
    /// The part of it that no clock had to sample, because it was over before the sampling began or when a thread ended.
    unplaced: Unplaced,
    /// Weight of all records, whatever they count, as the process adds it up.
    recorded_weight: u64,
    truncated: u64,
    counters: Counters,
    fate: Option<ProcessFate>,
    /// Threads by number: the thread id, and whether it has samples.
    threads: BTreeMap<u32, (u32, bool)>,
    /// The thread of the last sample, its number and id.
    last: Option<(u32, u32)>,
}

impl Image {
    fn introduce(&mut self, info: &ProcessInfo) {
        (self.pid, self.ppid, self.parent) = (info.pid, info.ppid, info.parent);
        self.exe.clone_from(&info.exe);
        self.source.clone_from(&info.source);
        self.period_ns = info.period_ns;
        self.note.clone_from(&info.note);
    }
}

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
