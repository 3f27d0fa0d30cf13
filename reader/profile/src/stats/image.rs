//! What is counted of one process image.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::profile_file::{Counters, ProcessFate, ProcessInfo};

/// Samples of CPU time before the sampling began or at the end of a thread.
#[derive(Default)]
pub(super) struct Unplaced {
    pub(super) samples: u64,
    pub(super) weight: u64,
}

/// A process image. There may be very many, so only what is shown is kept.
#[derive(Default)]
pub(super) struct Image {
    pub(super) pid: u32,
    pub(super) ppid: u32,
    pub(super) parent: Option<u32>,
    /// Its parent is the same process before an exec.
    pub(super) was_executed: bool,
    pub(super) exe: PathBuf,
    pub(super) source: String,
    pub(super) period_ns: u64,
    pub(super) note: String,
    pub(super) samples: u64,
    /// Samples that timers triggered, perhaps in place of the image's source.
    pub(super) of_thread_timers: u64,
    /// Samples that the clock did not trigger, by number of their source.
    pub(super) of_probes: Vec<(u8, u64)>,
    pub(super) unwinds: u64,
    /// Weight of the main event's samples.
    pub(super) weight: u64,
    /// Weight of the clock's samples.
    pub(super) clock_weight: u64,
    /// The part of it that no clock had to sample, because it was over before the sampling began or when a thread ended.
    pub(super) unplaced: Unplaced,
    /// Weight of all records, whatever they count, as the process adds it up.
    pub(super) recorded_weight: u64,
    pub(super) truncated: u64,
    pub(super) counters: Counters,
    pub(super) fate: Option<ProcessFate>,
    /// Threads by number: the thread id, and whether it has samples.
    pub(super) threads: BTreeMap<u32, (u32, bool)>,
    /// The thread of the last sample, its number and id.
    pub(super) last: Option<(u32, u32)>,
}

impl Image {
    pub(super) fn introduce(&mut self, info: &ProcessInfo) {
        (self.pid, self.ppid, self.parent) = (info.pid, info.ppid, info.parent);
        self.exe.clone_from(&info.exe);
        self.source.clone_from(&info.source);
        self.period_ns = info.period_ns;
        self.note.clone_from(&info.note);
    }
}
