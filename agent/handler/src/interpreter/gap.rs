//! Marks that stand where frames of an interpreter are missing.

/// Why frames of an interpreter are missing; the offset of an [`unwind::Interpreted`] without a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Gap {
    /// What should be a frame is none, or cannot be read.
    Unreadable = 1,
    /// There was no room to note the function's name.
    Unnamed = 2,
    /// There are more frames than a stack has.
    TooDeep = 3,
    /// As `Unnamed`, of a frame that a region's unwinder emitted.
    UnnamedByUnwinder = 4,
}
