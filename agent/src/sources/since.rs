//! The part of a thread's CPU time that its samples account for.

/// From when on samples account for a thread's CPU time.
#[derive(Clone, Copy)]
pub(crate) enum Since {
    /// From its start, which was just now, or from an exec at an unknown time.
    Birth,
    /// From the exec that made it the only thread of a new image, at this much of its CPU time.
    Exec { at_ns: u64 },
    /// From now on; a timer first expires after this much CPU time.
    Now { delay_ns: u64 },
}

impl Since {
    /// The most that is sampled of a start where the time of the exec is not known.
    pub(crate) const SHORT_START_NS: u64 = 2_000_000;

    /// The part of a thread's CPU time so far, `used_ns`, that samples must account for.
    pub(crate) fn earlier_ns(self, used_ns: u64) -> u64 {
        match self {
            Since::Birth => used_ns.min(Self::SHORT_START_NS),
            Since::Exec { at_ns } => used_ns.saturating_sub(at_ns),
            Since::Now { .. } => 0,
        }
    }

    pub(crate) fn delay_ns(self) -> u64 {
        match self {
            Since::Birth | Since::Exec { .. } => 0,
            Since::Now { delay_ns } => delay_ns,
        }
    }
}
