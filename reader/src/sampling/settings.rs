//! Everything that an agent is told about its sampling.

use std::path::PathBuf;

use crate::sampling::buffer::Buffer;
use crate::sampling::rate::Overhead;
use crate::sampling::sources::Sources;

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
    /// What each process can hold back at least.
    pub(crate) buffer: Buffer,
}
