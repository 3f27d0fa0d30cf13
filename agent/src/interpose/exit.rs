//! `_exit`, by which forked children often end: what their thread did since its last sample is sampled before.
//!
//! It may be called in a signal handler, so nothing but that sample is taken: the reader finds the rest in the memory of
//! the dead process. `exit` runs the agent's own exit function.

use core::ffi::c_int;

use super::real::{call_real, own_recording, real_functions};
use crate::threads;
use handler::sys;

real_functions! {
    EXIT = c"_exit";
}

fn exit(status: c_int) -> ! {
    if own_recording().is_some() {
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
