//! The counterpart of this module in the library for all recordings without `-e alloc`: it interposes no allocator.

use handler::recording::Recording;

/// There are none.
pub(crate) fn find_real_functions() {}

/// Nothing is sampled.
pub(crate) fn begin(_recording: &Recording, _mean: u64) {}

/// Nothing is sampled.
pub(crate) fn never() {}

/// There are none.
pub(crate) fn forget_blocks() {}

/// There are none.
pub(crate) fn redirect() -> bool {
    false
}

/// There are none.
pub(crate) fn end_redirection() {}
