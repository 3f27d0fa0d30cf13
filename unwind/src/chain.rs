//! What a walk knows of frame records that no call has made.

/// Frame records of generated code that was jumped to with a return address that follows no call, as by HotSpot's interpreter.
/// They are believed if each leads to one further out, up to one that a call has made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    /// The frame pointer of the frame that was believed last.
    pub(crate) fp: u64,
    /// The record at the end of its chain.
    pub(crate) end: u64,
}

impl Chain {
    /// Of no frame yet.
    pub(crate) const fn none() -> Self {
        Self { fp: 0, end: 0 }
    }
}
