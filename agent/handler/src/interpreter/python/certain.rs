//! How much of a thread state's frames may be read without asking; why, says `trust`.

/// How much may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Nothing.
    Nothing,
    /// The next frame if `DataStack` holds it; then all further out.
    DataStack,
    /// All frames from here on.
    All,
}

/// What is known of a thread state before its frames are looked at.
#[derive(Clone, Copy)]
pub(super) struct Certain {
    pub(super) trust: Trust,
    /// The frame that the thread runs, if it may not be trusted.
    pub(super) doubtful: u64,
}

impl Certain {
    pub(super) const NOTHING: Certain = Certain { trust: Trust::Nothing, doubtful: 0 };
}
