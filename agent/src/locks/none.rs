//! The library that a recording without `-e lock` preloads: it has nothing to do with the program's locks.

/// There are none.
pub(crate) fn find_real_functions() {}

/// Nothing is watched.
pub(crate) fn begin(_mean_ns: u64) {}

/// Nothing is watched.
pub(crate) fn never() {}

/// There are none.
pub(crate) fn forget_waits() {}

/// It waits for nothing.
pub(crate) fn thread_ends() {}
