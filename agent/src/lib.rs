//! The preloaded library by which a process samples itself.
