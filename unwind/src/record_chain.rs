//! The state of a walk for following frame records that no call created.

/// A chain of frame records in generated code that jumps to other code with a return address that follows no call, as
/// HotSpot's interpreter does. Such records are accepted if each leads to one further out, up to one that a call
/// created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordChain {
    /// Frame pointer of the last accepted frame.
    pub(crate) fp: u64,
    /// The frame record at the end of the chain.
    pub(crate) end: u64,
    /// Stack pointer at which the walk entered this stack. The range from it to the current frame has been walked.
    pub(crate) low: u64,
}

impl RecordChain {
    /// For a walk that starts at this stack pointer.
    pub(crate) const fn new(low: u64) -> Self {
        Self { fp: 0, end: 0, low }
    }
}
