//! What a pointer of the interpreter leads to cannot be read, or is not what it should be.

use crate::interpreter::gap::Gap;

/// See above.
pub(super) struct Unreadable;

impl From<Unreadable> for Gap {
    fn from(_: Unreadable) -> Gap {
        Gap::Unreadable
    }
}
