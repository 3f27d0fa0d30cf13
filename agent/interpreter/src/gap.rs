//! Marks for missing frames of an interpreter.

/// Why frames of an interpreter are missing; the offset of an [`unwind::Interpreted`] without a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Gap {
    /// What should be a frame is not one, or cannot be read.
    Unreadable = 1,
    /// There was no room for the function's name.
    Unnamed = 2,
    /// There are more frames than fit into a stack.
    TooDeep = 3,
    /// Like `Unnamed`, for a frame emitted by a region unwinder.
    UnnamedByUnwinder = 4,
}
