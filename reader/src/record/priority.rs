//! The recorder's own scheduling priority.

/// Raises the recorder's priority above that of the recorded threads, where allowed (root). Among hundreds of busy threads, an
/// equal share of the CPU would not be enough to drain all their samples. A failure is ignored.
pub(super) fn raise_priority() {
    const NICE: i32 = -20;
    if rustix::process::getpriority_process(None).is_ok_and(|nice| nice > NICE) {
        let _ = rustix::process::setpriority_process(None, NICE);
    }
}
