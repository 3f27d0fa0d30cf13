//! The time axis: the format counts in milliseconds from an origin.

use crate::profile::Profile;

/// The time axis.
pub(super) struct Axis {
    /// Its origin: the start of the recording, or an older sample (of a process that recorded before).
    pub(super) zero_ns: u64,
    pub(super) end_ns: u64,
}

impl Axis {
    pub(super) fn new(profile: &Profile) -> Self {
        let (session, detail) = (&profile.session, &profile.stats.detail);
        let first = profile.timeline.first().map_or(session.started_ns, |timed| timed.ns);
        let last = profile.timeline.last().map_or(0, |timed| timed.ns);
        let end_ns = last.max(session.started_ns.saturating_add(detail.duration_ns));
        Axis { zero_ns: first.min(session.started_ns), end_ns }
    }

    /// Milliseconds since its origin.
    pub(super) fn milliseconds(&self, ns: u64) -> f64 {
        ns.saturating_sub(self.zero_ns) as f64 / 1e6
    }
}
