//! `_exit`, by which forked children often end: what their thread did since its last sample is sampled before.
//!
//! It may be called in a signal handler, so nothing but that sample is taken: the reader finds the rest in the memory of
//! the dead process. On an alternate signal stack, which may have no room left, there is no sample. `exit` runs the
//! agent's own exit function.

use core::ffi::c_int;

use super::real::{call_real, own_recording, real_functions};
use crate::threads;
use handler::slot;
use platform::sys;

real_functions! {
    EXIT = c"_exit";
}

/// What must be free on the stack: several times what a walk needs.
const ROOM: u64 = 16 << 10;

/// Whether the calling thread runs on the stack that it was started with, and has room there.
fn has_room() -> bool {
    let mark = 0u8;
    let here = &raw const mark as u64;
    slot::noted().is_some_and(|slot| {
        let stack = slot.stack();
        stack.hold(here) && here - stack.low >= ROOM
    })
}

fn exit(status: c_int) -> ! {
    if own_recording().is_some() && has_room() {
        threads::sample_remainder();
    }
    call_real!(EXIT as fn(c_int) -> (), (status), else ());
    loop {
        // SAFETY: ends the process.
        unsafe { sys::call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// POSIX `_exit`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _exit(status: c_int) -> ! {
    exit(status)
}

/// ISO C `_Exit`, which is the same.
///
/// # Safety
/// As ISO C says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _Exit(status: c_int) -> ! {
    exit(status)
}
