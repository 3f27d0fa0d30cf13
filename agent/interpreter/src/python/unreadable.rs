//! The error for a pointer of the interpreter whose target cannot be read or is not what it should be.

use crate::gap::Gap;

/// The target of a pointer cannot be read, or is not what it should be.
pub(super) struct Unreadable;

impl From<Unreadable> for Gap {
    fn from(_: Unreadable) -> Gap {
        Gap::Unreadable
    }
}
