//! What to record, and how: the flags of `record` once they are understood.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use selfwind_profile::symbolize::SymbolSources;

use crate::sampling::settings::SamplingSettings;
use crate::terminal::notices::Notices;

/// What to record and how.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordOptions {
    /// How processes are sampled.
    pub(crate) sampling: SamplingSettings,
    /// When to stop.
    pub(crate) duration: Option<Duration>,
    /// What is left out at the beginning.
    pub(crate) delay: Option<Duration>,
    /// Where to write.
    pub(crate) output: Option<PathBuf>,
    /// Begin the stacks of another format with their threads.
    pub(crate) per_thread: bool,
    /// Show the result to the user.
    pub(crate) open: bool,
    /// The running process; otherwise `command` is run.
    pub(crate) pid: Option<u32>,
    /// Write what rings hold, at a signal or at once, instead of draining them all the time.
    pub(crate) snapshot: bool,
    /// How often a snapshot is taken.
    pub(crate) every: Option<Duration>,
    /// Names are stored in the profile when the recording ends.
    pub(crate) names: bool,
    /// Where they come from.
    pub(crate) sources: SymbolSources,
    /// How much to say.
    pub(crate) notices: Notices,
    /// The program and its arguments.
    pub(crate) command: Vec<OsString>,
}

impl RecordOptions {
    /// Whether snapshots are taken while a recording runs.
    pub(crate) fn takes_snapshots(&self) -> bool {
        self.snapshot || self.every.is_some()
    }

    /// When to stop, if the recording begins now.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        Some(Instant::now() + self.delay.unwrap_or_default() + self.duration?)
    }
}
