//! The profile file: what `record` writes and every other command reads.
//!
//! It is a stream of checksummed blocks, appended while recording, so that a recorder that is killed leaves a readable file.
//! `docs/profile-file.md` specifies the format, which only this module knows. Whatever a file contains, reading it ends in events or a
//! [`ProfileError`], never in a panic, and never allocates more than a block and one event.

mod codec;
mod comparison;
mod event;
mod fields;
mod in_use;
mod known_modules;
mod name_section;
mod reader;
mod sample_codec;
mod sample_ref;
mod tracepoint_codec;
mod writer;

pub use comparison::{Comparison, Recovered, Verdict};
pub(crate) use event::ALLOCATION;
pub use event::{
    Cause, Counters, CountersAt, End, Event, FileIdentity, GeneratedCode, GeneratedFunction,
    InterpretedFunction, KernelSample, KernelSymbol, ModuleGone, ModuleInfo, NO_ANSWER, NanosBucket,
    ProcessEnd, ProcessFate, ProcessInfo, Sample, SamplePart, Segment, SessionInfo, Setting, ThreadEnd,
    ThreadInfo, ThreadName, WAKE_LATENCY, WAKE_LATENCY_NAME, WALL_MARKS, end_name,
};
pub use in_use::{LiveBlocks, LiveMappings};
pub use name_section::{NameSection, NameSectionWriter, NamedFrame, StoredBinary, StoredFrame, StoredOrigin};
pub use reader::{ProfileReader, Tail};
pub use sample_ref::SampleRef;
pub use writer::ProfileWriter;

use std::io;
use std::os::unix::fs::MetadataExt;

use nix::unistd::User;

/// The first eight bytes of every profile.
pub const MAGIC: [u8; 8] = *b"SELFWIND";
/// The first bytes of perf's own files.
const PERF_MAGIC: [u8; 8] = *b"PERFILE2";
/// The version this build writes.
pub const VERSION: u32 = 4;
/// The oldest version that it reads: the same without references to earlier modules.
const OLDEST: u32 = 1;
/// Magic, version, reserved word.
const HEADER_LEN: usize = 16;
/// Kind, length, checksum.
const BLOCK_HEADER_LEN: usize = 12;
/// Block kinds: a run of events, a part of the names.
const BLOCK_EVENTS: u32 = 1;
const BLOCK_NAMES: u32 = 2;
/// A block is written out when its payload reaches this many bytes.
const BLOCK_TARGET: usize = 60 << 10;
/// Maximum payload size, for writers and readers.
const BLOCK_MAX: usize = 1 << 20;
/// Frames in one sample.
const FRAMES_MAX: usize = 4096;
/// Kernel events in one sample.
const KERNEL_SAMPLES_MAX: usize = 1 << 14;
/// Frames in one kernel stack: eight times what kernel.perf_event_max_stack allows by default (127).
pub const KERNEL_FRAMES_MAX: usize = 1024;
/// Bytes in one string.
const STRING_MAX: usize = 64 << 10;

/// Why a profile cannot be read. Each message is one line: the cause, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file cannot be opened.
    #[error("{path}: {cause}; {}", way_out(path, cause))]
    Open {
        /// The path as given.
        path: String,
        /// The system's error.
        cause: io::Error,
    },
    /// Reading failed.
    #[error("{path}: cannot read it: {cause}")]
    Read {
        /// The path as given.
        path: String,
        /// The system's error.
        cause: io::Error,
    },
    /// It was read, and its copy cannot be written.
    #[error("{path}: cannot write its copy: {cause}")]
    Copy {
        /// The path as given.
        path: String,
        /// The system's error.
        cause: io::Error,
    },
    /// No bytes at all: the recorder ended before its first write.
    #[error("{path}: the file is empty; record again")]
    Empty {
        /// The path as given.
        path: String,
    },
    /// The magic is missing.
    #[error(
        "{path}: not a selfwind profile (it does not begin with SELFWIND); name a file written by `selfwind record`"
    )]
    NotAProfile {
        /// The path as given.
        path: String,
    },
    /// perf's own format.
    #[error(
        "{path}: a perf.data file, not a selfwind profile; `selfwind import {path}` converts it, `perf report -i {path}` shows it (`record -o` writes that format for names that end in perf.data; choose another name for a profile)"
    )]
    PerfData {
        /// The path as given.
        path: String,
    },
    /// Another version of the format.
    #[error(
        "{path}: profile version {found}, but this selfwind reads versions {OLDEST} to {VERSION}; use the selfwind that recorded it, or record again"
    )]
    Version {
        /// The path as given.
        path: String,
        /// The version in the file.
        found: u32,
    },
    /// The first block is damaged.
    #[error("{path}: damaged at byte {offset} ({what}), before the first sample; record again")]
    Corrupt {
        /// The path as given.
        path: String,
        /// Where the damaged block begins.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// What to do about a file that cannot be opened.
fn way_out(path: &str, cause: &io::Error) -> String {
    if cause.kind() != io::ErrorKind::PermissionDenied {
        return "name a profile written by `selfwind record`".into();
    }
    match std::fs::metadata(path) {
        Ok(file) => {
            let name = User::from_uid(file.uid().into()).ok().flatten().map(|user| user.name);
            let owner = name.unwrap_or_else(|| format!("user {}", file.uid()));
            format!("it belongs to {owner}, who can `chmod a+r` it; or read it as {owner}")
        }
        Err(_) => "you may not enter its directory; read it as the user who recorded it".into(),
    }
}

/// Checksum of a block: CRC-32 (IEEE) over kind, length and payload.
fn checksum(kind: u32, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&kind.to_le_bytes());
    hasher.update(&(payload.len() as u32).to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

/// Appends a block to `out`.
fn frame_block(kind: u32, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&checksum(kind, payload).to_le_bytes());
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests;
