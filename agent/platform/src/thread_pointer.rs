//! The thread pointer, through which thread-local storage is accessed, and whether it may be.
//!
//! A program may point it elsewhere for a while: emulators do when they run foreign code. What must never happen here: an
//! access to memory that may be the program's, or not mapped.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::activity::is_filtered;
use crate::arch;
use crate::sys::{self, SignalsBlocked};

/// Thread pointers that were found to be usable, by a hash; each with [`MARK`], so that 0 is none.
static USABLE: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
const PLACES: usize = 256;
/// No address, so nothing that a thread pointer can be.
const MARK: u64 = 1 << 63;

/// Tells of the machine's capabilities: the auxiliary vector's AT_HWCAP2.
pub fn note_capabilities(capabilities: u64) {
    arch::note_capabilities(capabilities);
}

/// Whether thread-local storage may be accessed. Asks the kernel only about a pointer that it has not yet seen.
#[inline(always)]
pub fn is_usable() -> bool {
    let Some(pointer) = arch::thread_pointer() else { return true };
    let place = USABLE.get((pointer >> 12) as usize % PLACES);
    place.is_none_or(|place| place.load(Ordering::Relaxed) == pointer ^ MARK || check(pointer, place))
}

#[cold]
#[inline(never)]
fn check(pointer: u64, place: &AtomicU64) -> bool {
    if is_filtered() {
        return true;
    }
    let is_usable = {
        let _blocked = SignalsBlocked::enter();
        names_itself(pointer) && sys::is_readable(arch::thread_word_address(pointer))
    };
    if is_usable {
        place.store(pointer ^ MARK, Ordering::Relaxed);
    }
    is_usable
}

/// Whether the memory at a thread pointer is a control block of a C library. All signals must be blocked.
pub fn names_itself(pointer: u64) -> bool {
    // SAFETY: the aligned word was just probed, and control blocks of running threads stay mapped.
    pointer.is_multiple_of(8) && sys::is_readable(pointer) && unsafe { arch::load(pointer) } == pointer
}

/// The result of `pthread_self`, if the architecture and the thread pointer tell.
#[inline]
pub fn pthread_self() -> Option<u64> {
    is_usable().then(arch::pthread_self)?
}
