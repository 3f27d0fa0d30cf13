//! Everything that an agent is told about its sampling.

use crate::sampling::buffer::Buffer;
use crate::sampling::rate::Overhead;
use crate::sampling::source::Source;
use crate::sampling::unwinding::{CopyLimit, Unwinding};

/// How processes are sampled.
#[derive(Clone, Debug, Default)]
pub(crate) struct SamplingSettings {
    /// Samples per second of CPU time.
    pub(crate) frequency: u32,
    /// What triggers them.
    pub(crate) source: Source,
    /// Frames kept of a stack.
    pub(crate) max_stack: u32,
    /// What sampling may cost.
    pub(crate) max_overhead: Overhead,
    /// Frames of interpreters are left out.
    pub(crate) native_only: bool,
    /// Who unwinds them.
    pub(crate) unwinding: Unwinding,
    /// How much of a stack is copied.
    pub(crate) copy_limit: CopyLimit,
    /// What each process can hold back at least.
    pub(crate) buffer: Buffer,
}

impl SamplingSettings {
    /// Refuses what this user may not have, and what does not go together.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.unwinding != Unwinding::Own && matches!(self.source, Source::Allocations(_)) {
            anyhow::bail!(
                "--unwind {}: the stacks of allocations (-e alloc) are always walked by their threads; leave --unwind out",
                self.unwinding.name()
            );
        }
        self.source.check()
    }
}
