//! The counterpart of this module in the library for all recordings without `-e alloc`: it interposes no allocator.

use handler::recording::Recording;

use crate::agent::Agent;

/// There are none.
pub(crate) fn find_real_functions() {}

/// Nothing is sampled.
pub(crate) fn begin(_recording: &Recording, _agent: &Agent) {}

/// Nothing is redirected.
pub(crate) fn follow_loads() {}

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
