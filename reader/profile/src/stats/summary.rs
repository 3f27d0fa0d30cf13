//! The numbers themselves, as `stats --json` prints them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use super::copies::CopyStats;
use crate::measure::Weighed;

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
