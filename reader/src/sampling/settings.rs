//! All sampling settings of an agent.

use std::path::PathBuf;

use crate::sampling::buffer::Buffer;
use crate::sampling::rate::Overhead;
use crate::sampling::sources::Sources;
use crate::sampling::unwinding::{CopyLimit, Unwinding};

/// How processes are sampled.
#[derive(Clone, Debug, Default)]
pub(crate) struct SamplingSettings {
    /// Samples per second of CPU time.
    pub(crate) frequency: u32,
    /// What triggers them.
    pub(crate) sources: Sources,
    /// Maximum stack depth in frames.
    pub(crate) max_stack: u32,
    /// Maximum overhead.
    pub(crate) max_overhead: Overhead,
    /// Leave out frames of interpreted functions.
    pub(crate) native_only: bool,
    /// Shared objects to load together with the agent.
    pub(crate) plugins: Vec<PathBuf>,
    /// How stacks are unwound.
    pub(crate) unwinding: Unwinding,
    /// Maximum size of a stack copy.
    pub(crate) copy_limit: CopyLimit,
    /// Minimum size of each process's pool.
    pub(crate) buffer: Buffer,
}

impl SamplingSettings {
    /// Fails for settings that this user has no permission for, and for invalid combinations.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.unwinding != Unwinding::Own && !self.sources.have_clock() {
            anyhow::bail!(
                "--unwind {} applies to samples of a clock, and -e {} has none; leave out --unwind, or add a clock: -e cpu,{1}",
                self.unwinding.name(),
                self.sources.name()
            );
        }
        self.sources.check()
    }
}
