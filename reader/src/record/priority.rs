//! The recorder's own place among all that wants a processor.

/// Has the scheduler prefer us to what we record, where that is allowed (root): among hundreds of busy threads an equal
/// share of the processor would not be enough to take all their samples. We use little of it. No matter if it is not.
pub(super) fn ask_for_priority() {
    const NICE: i32 = -10;
    if rustix::process::getpriority_process(None).is_ok_and(|nice| nice > NICE) {
        let _ = rustix::process::setpriority_process(None, NICE);
    }
}
