//! How many frames of a thread state may be read without a probe; `trust` has the reasons.

/// What may be read without a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Nothing.
    Nothing,
    /// The next frame if it is on the data stack, and then all outer ones.
    DataStack,
    /// This frame and all outer ones.
    All,
}

/// What is known of a thread state before its frames are read.
#[derive(Clone, Copy)]
pub(super) struct Certain {
    pub(super) trust: Trust,
    /// The innermost frame, if it may not be trusted; 0 otherwise.
    pub(super) doubtful: u64,
    /// The innermost frame, if all are trusted.
    pub(super) innermost: u64,
}

impl Certain {
    pub(super) const NOTHING: Certain = Certain { trust: Trust::Nothing, doubtful: 0, innermost: 0 };
}
