//! The profile file: what `record` writes and every other command reads.
//!
//! It is a stream of checksummed blocks, appended while recording, so that a recorder that is killed leaves a readable file.
//! `docs/profile-file.md` specifies the format, which only this module knows. Whatever a file contains, reading it ends in events or a
//! [`ProfileError`], never in a panic, and never allocates more than a block and one event.

mod block;
mod codec;
mod comparison;
mod error;
mod event;
mod fields;
mod header;
mod in_use;
mod known_modules;
mod limits;
mod name_section;
mod reader;
mod sample_codec;
mod sample_ref;
mod tracepoint_codec;
mod writer;

pub use comparison::{Comparison, Recovered, Verdict};
pub use error::ProfileError;
pub(crate) use event::ALLOCATION;
pub use event::{
    Cause, Counters, CountersAt, End, Event, FileIdentity, GeneratedCode, GeneratedFunction,
    InterpretedFunction, KernelSample, KernelSymbol, ModuleGone, ModuleInfo, NO_ANSWER, NanosBucket,
    ProcessEnd, ProcessFate, ProcessInfo, Sample, SamplePart, Segment, SessionInfo, Setting, ThreadEnd,
    ThreadInfo, ThreadName, WAKE_LATENCY, WAKE_LATENCY_NAME, WALL_MARKS, end_name,
};
pub use header::{MAGIC, VERSION};
pub use in_use::{LiveBlocks, LiveMappings};
pub use limits::KERNEL_FRAMES_MAX;
pub use name_section::{NameSection, NameSectionWriter, NamedFrame, StoredBinary, StoredFrame, StoredOrigin};
pub use reader::{ProfileReader, Tail};
pub use sample_ref::SampleRef;
pub use writer::ProfileWriter;

#[cfg(test)]
mod tests;
