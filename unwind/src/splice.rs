//! Where a walk runs along the previous one.

/// The frames that this walk has in common with the previous one.
#[derive(Clone, Copy)]
pub(crate) struct Splice {
    /// Number of the first common frame in this walk.
    pub(crate) from: usize,
    /// Number of the frame after the last common one.
    pub(crate) until: usize,
    /// Index of the first common frame in the stack cache.
    pub(crate) index: usize,
}

impl Splice {
    /// Index in the stack cache that frame `number` has if it is common, too.
    pub(crate) fn index_of(&self, number: usize) -> usize {
        self.index + (number - self.from)
    }
}
