//! Stubs for the build that does not record mappings.

use crate::lock::Lock;

/// Does nothing.
pub(crate) fn find_real_functions() {}

/// A lock that nothing else uses.
pub(crate) fn lock() -> &'static Lock {
    static LOCK: Lock = Lock::new();
    &LOCK
}
