//! Everything that an agent is told about its sampling.

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
    /// Frames kept of a stack.
    pub(crate) max_stack: u32,
    /// What sampling may cost.
    pub(crate) max_overhead: Overhead,
    /// Frames of interpreters are left out.
    pub(crate) native_only: bool,
    /// Shared objects that are loaded beside the agent.
    pub(crate) plugins: Vec<PathBuf>,
    /// What unwinds stacks.
    pub(crate) unwinding: Unwinding,
    /// How much of a stack is copied.
    pub(crate) copy_limit: CopyLimit,
    /// What each process can hold back at least.
    pub(crate) buffer: Buffer,
}

impl SamplingSettings {
    /// Refuses what this user may not have, and what does not go together.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.unwinding != Unwinding::Own && !self.sources.have_clock() {
            anyhow::bail!(
                "--unwind {}: it is for samples of a clock, and {} has none: leave --unwind out, or name a clock, too, such as -e cpu,{1}",
                self.unwinding.name(),
                self.sources.name()
            );
        }
        self.sources.check()
    }
}
