//! `ptrace`: a thread that asks to be traced (PTRACE_TRACEME).
//!
//! Its tracer sees every signal before the thread does. One that waits for the first of them, or swallows those that it does
//! not know, must not find samples among them. A program that is executed under a tracer is another matter: its agent
//! chooses a source for which tracers have no other meaning.

use core::ffi::{c_int, c_long, c_void};

use platform::activity::Active;

use super::real::{call_real, fail, own_recording, real_functions};
use crate::agent;
use crate::process;

real_functions! {
    PTRACE = c"ptrace";
}

/// Whether `request` of ptrace(2) makes the calling thread a tracee.
pub(super) fn asks(request: c_int) -> bool {
    request == libc::PTRACE_TRACEME as c_int
}

/// Makes the request of a thread to be traced.
pub(super) fn asking(request: impl FnOnce() -> c_long) -> c_long {
    match (Active::enter(), own_recording(), agent::get()) {
        (Some(_active), Some(recording), Some(agent)) => process::ask_tracer(recording, agent, request),
        _ => request(),
    }
}

/// Linux `ptrace`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ptrace(
    request: c_int,
    process: libc::pid_t,
    address: *mut c_void,
    data: *mut c_void,
) -> c_long {
    let real = || {
        call_real!(
            PTRACE as fn(c_int, libc::pid_t, *mut c_void, *mut c_void) -> c_long,
            (request, process, address, data),
            else fail(libc::ENOSYS).into()
        )
    };
    if asks(request) { asking(real) } else { real() }
}
