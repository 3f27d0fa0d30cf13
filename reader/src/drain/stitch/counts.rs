//! How many of the kernel's events ended in which way.

use selfwind_profile::profile_file::Cause;

/// How many events ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StitchCounts {
    /// Events recorded by the kernel that reached the reader.
    pub(crate) events: u64,
    /// The stack was taken exactly where the event happened.
    pub(super) exact: u64,
    /// The same, but the kernel had set the thread back to restart its system call.
    pub(super) restarted: u64,
    /// The same, but one instruction after the breakpoint that was the event.
    pub(super) stepped: u64,
    /// The event's stack is an outer part of the walked stack.
    pub(crate) deeper: u64,
    /// The event's function had returned, and the thread walked what was left of its frames.
    pub(crate) returned: u64,
    /// The thread had moved on, but the kernel had walked its stack.
    pub(crate) deferred: u64,
    /// Caused by the agent itself: not a sample of the program.
    pub(crate) overhead: u64,
    /// The thread had moved on while the agent's signal was blocked.
    pub(crate) blocked: u64,
    /// The thread had moved on for another reason.
    pub(super) unmatched: u64,
    /// The thread ended before it walked its stack.
    pub(super) unanswered: u64,
    /// Lost because the kernel's ring was full: these have a user stack but no kernel stack.
    pub(crate) lost: u64,
    /// Ring bytes lost because the pool was full or a tick was skipped.
    pub(super) missing_bytes: u64,
    /// Records that do not have the kernel's format.
    pub(super) malformed: u64,
    /// How often the kernel throttled an event.
    pub(super) throttled: u64,
    /// Microseconds off the CPU while runnable (preempted): not in the samples.
    pub(super) preempted_us: u64,
    /// Microseconds from wake-up to running: in the samples, under a frame of their own.
    pub(super) wake_latency_us: u64,
    /// Switches without a wait: the thread was preempted, or came back at once. Not in the samples.
    pub(super) not_waiting: u64,
    /// Perf rings opened.
    pub(crate) rings: u64,
    /// Perf rings that see user mode only.
    pub(super) user_only_rings: u64,
}

impl StitchCounts {
    /// The non-zero counts with their names.
    pub(crate) fn named(&self) -> Vec<Cause> {
        [
            ("events", self.events),
            ("exact", self.exact),
            ("restarted", self.restarted),
            ("stepped", self.stepped),
            ("deeper", self.deeper),
            ("returned", self.returned),
            ("deferred", self.deferred),
            ("overhead", self.overhead),
            ("blocked", self.blocked),
            ("unmatched", self.unmatched),
            ("unanswered", self.unanswered),
            ("lost", self.lost),
            ("missing_bytes", self.missing_bytes),
            ("malformed", self.malformed),
            ("throttled", self.throttled),
            ("preempted_us", self.preempted_us),
            ("wake_latency_us", self.wake_latency_us),
            ("not_waiting", self.not_waiting),
            ("rings", self.rings),
            ("user_only_rings", self.user_only_rings),
        ]
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| Cause { name: name.into(), count, weight: count })
        .collect()
    }
}
