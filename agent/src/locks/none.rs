//! Stubs for the build that does not watch locks.

/// Does nothing.
pub(crate) fn find_real_functions() {}

/// Does nothing.
pub(crate) fn begin(_mean_ns: u64, _limit: u64) {}

/// Does nothing.
pub(crate) fn never() {}

/// Does nothing.
pub(crate) fn forget_waits() {}

/// Does nothing.
pub(crate) fn thread_ends() {}
