//! The interrupted thread.

use unwind::StackCache;

use super::descriptor::Python;
use crate::recording::Recording;

/// What the interrupted thread runs, and where.
pub(crate) struct Thread<'a> {
    pub(crate) python: &'a Python,
    pub(crate) recording: &'a Recording,
    /// The native walk.
    pub(crate) native: &'a StackCache,
    /// What `pthread_self` says.
    pub(crate) pointer: u64,
}
