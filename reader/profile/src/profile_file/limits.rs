//! Limits on the parts of an event. Writers cut what exceeds them, and readers reject it before they allocate memory.

/// Frames in one sample.
pub(super) const FRAMES_MAX: usize = 4096;
/// Kernel events in one sample.
pub(super) const KERNEL_SAMPLES_MAX: usize = 1 << 14;
/// Frames in one kernel stack: eight times what kernel.perf_event_max_stack allows by default (127).
pub const KERNEL_FRAMES_MAX: usize = 1024;
/// Bytes in one string.
pub(super) const STRING_MAX: usize = 64 << 10;
