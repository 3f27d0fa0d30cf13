//! What a walk knows of the frame records that it may follow.

/// Frame records of generated code that was jumped to with a return address that follows no call, as by HotSpot's interpreter.
/// They are believed if each leads to one further out, up to one that a call has made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    /// The frame pointer of the frame that was believed last.
    pub(crate) fp: u64,
    /// The record at the end of its chain.
    pub(crate) end: u64,
    /// The stack pointer with which the walk has come to this stack: what lies between it and the frame under way was walked.
    pub(crate) low: u64,
}

impl Chain {
    /// Of a walk that begins with this stack pointer.
    pub(crate) const fn new(low: u64) -> Self {
        Self { fp: 0, end: 0, low }
    }
}
