//! The result of a walk.

use crate::end::End;

/// What a walk found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Frames written, leaf first.
    pub depth: usize,
    /// Why there are no more.
    pub end: End,
    /// Lower bound of the number of outermost frames that are identical, word for word, to those of the thread's previous
    /// walk (recorded or not).
    pub unchanged: usize,
}

impl Walk {
    /// A walk that has no previous walk to compare with.
    pub const fn fresh(depth: usize, end: End) -> Self {
        Self { depth, end, unchanged: 0 }
    }
}
