//! The mode of a function: whether it is known to call another allocating function for its block. Only one of the two may
//! count the bytes.

use core::sync::atomic::{AtomicU8, Ordering};

use super::allocation_call::Kind;
use super::real::{ALLOCATING, COUNT};

/// Not known yet.
pub(super) const UNKNOWN: u8 = 0;
/// One call did not.
const ONCE_ALONE: u8 = 1;
/// One call did.
const ONCE_NESTED: u8 = 2;
/// It does not, so it counts bytes itself.
pub(super) const COUNTS: u8 = 3;
/// It does, and the other one counts; or nothing is counted.
pub(super) const PASSES: u8 = 4;

/// The mode of each function.
pub(super) static MODES: [AtomicU8; COUNT] = [const { AtomicU8::new(UNKNOWN) }; COUNT];

/// Sets the mode of all functions.
pub(super) fn set_all(mode: u8) {
    for known in &MODES {
        known.store(mode, Ordering::Relaxed);
    }
}

/// Learns whether a function calls another interposed one for its block. Takes two calls that agree, because a signal
/// handler that allocates may look like that once.
#[inline]
pub(super) fn learn(kind: Kind, nested: bool) {
    if let Some(known) = MODES.get(kind.0)
        && known.load(Ordering::Relaxed) < COUNTS
    {
        learn_from(known, kind, nested);
    }
}

#[cold]
#[inline(never)]
fn learn_from(known: &AtomicU8, kind: Kind, nested: bool) {
    if kind.0 >= ALLOCATING {
        return;
    }
    let next = match (known.load(Ordering::Relaxed), nested) {
        (UNKNOWN, false) => ONCE_ALONE,
        (UNKNOWN, true) => ONCE_NESTED,
        (ONCE_ALONE, false) => COUNTS,
        (ONCE_NESTED, true) => PASSES,
        (ONCE_ALONE | ONCE_NESTED, _) => UNKNOWN,
        _ => return,
    };
    known.store(next, Ordering::Relaxed);
}
