//! What to record and how: the parsed flags of `record`.

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
    /// How much to skip at the beginning.
    pub(crate) delay: Option<Duration>,
    /// Where to write.
    pub(crate) output: Option<PathBuf>,
    /// Use threads as the roots of exported stacks.
    pub(crate) per_thread: bool,
    /// Open the result in the user's viewer.
    pub(crate) open: bool,
    /// The running process to record; otherwise `command` is run.
    pub(crate) pid: Option<u32>,
    /// Flight recorder: write what the pools hold at a signal or at once, instead of draining them continuously.
    pub(crate) snapshot: bool,
    /// How often to take a snapshot.
    pub(crate) every: Option<Duration>,
    /// Store names in the profile when the recording ends.
    pub(crate) names: bool,
    /// Where the names come from.
    pub(crate) sources: SymbolSources,
    /// How much to print.
    pub(crate) notices: Notices,
    /// The program and its arguments.
    pub(crate) command: Vec<OsString>,
}

impl RecordOptions {
    /// True if snapshots are taken during the recording.
    pub(crate) fn takes_snapshots(&self) -> bool {
        self.snapshot || self.every.is_some()
    }

    /// When to stop if the recording begins now.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        Some(Instant::now() + self.delay.unwrap_or_default() + self.duration?)
    }
}
