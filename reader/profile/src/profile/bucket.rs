//! What samples are added up to: stacks of frames with their weights.

use unwind::{End, Frame};

use crate::profile_file::NO_ANSWER;

/// How a kernel frame was found: by the kernel. Greater than all values of `unwind::FoundBy`.
pub(super) const KERNEL: u8 = 4;

/// A distinct stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stack {
    /// The node of the profile's paths at which it ends.
    pub(super) innermost: u32,
    /// Why the walk ended, see [`End`].
    pub end: u8,
}

/// One physical frame of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StackFrame {
    /// Index in [`super::Profile::locations`].
    pub location: u32,
    /// How it was found.
    pub found_by: u8,
}

impl From<StackFrame> for u64 {
    fn from(frame: StackFrame) -> u64 {
        u64::from(frame.location) << 8 | u64::from(frame.found_by)
    }
}

/// All samples of one thread and event with the same stack.
#[derive(Debug, Clone, PartialEq)]
pub struct Bucket {
    /// Index in [`super::Profile::threads`].
    pub thread: u32,
    /// Index in [`super::Profile::measures`].
    pub event: u8,
    /// Index in [`super::Profile::stacks`].
    pub stack: u32,
    /// Number of the events' fields, see [`crate::tracepoint::Tracepoints::carried`]; 0 for none, or if not wanted.
    pub fields: u32,
    /// Samples.
    pub samples: u64,
    /// Their weight in timer periods, or in units of the measure.
    pub weight: u64,
    /// The sum of the squares of their weights.
    pub squares: f64,
}

/// The totals of a profile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Samples.
    pub samples: u64,
    /// Their weight.
    pub weight: u64,
    /// Samples whose stack is incomplete.
    pub truncated: u64,
    /// Frames, each counted once per sample.
    pub frames: u64,
    /// Frames found by frame pointer, counted likewise.
    pub frame_pointer: u64,
    /// Guessed frames, counted likewise.
    pub guessed: u64,
}

/// Waits for locks at one stack that were ended at one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockPair {
    /// The waiting stack: index in [`super::Profile::stacks`].
    pub wait: u32,
    /// The stack that released the lock or woke the waiter.
    pub holder: u32,
    /// Samples.
    pub samples: u64,
    /// Total delay in nanoseconds that they represent.
    pub delay_ns: u64,
}

/// The marker at the root of a stack that ended for this reason; `None` if it is complete.
pub fn truncation_mark(end: u8) -> Option<String> {
    match End::from_number(end) {
        None if end == NO_ANSWER => Some("[truncated: no-answer]".into()),
        Some(end) if end.is_complete() => None,
        Some(end) => Some(format!("[truncated: {}]", end.name())),
        None => Some(format!("[truncated: reason {end}]")),
    }
}

/// How a frame was found, as named in outputs.
pub(crate) fn found_by_name(found_by: u8) -> &'static str {
    if found_by == KERNEL {
        return "kernel";
    }
    match Frame::from_bits(u64::from(found_by) << 62).found_by() {
        unwind::FoundBy::Cfi => "cfi",
        unwind::FoundBy::FramePointer => "frame-pointer",
        unwind::FoundBy::Guess => "guess",
        unwind::FoundBy::Region => "region",
    }
}
