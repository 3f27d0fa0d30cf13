//! The program's ITIMER_PROF, emulated while the agent uses the kernel's.

use core::ffi::c_int;

use handler::recording::Clock;
use platform::activity::Active;

use super::real::{call_real, fail, own_recording};
use crate::lock::Masked;
use crate::signals;
use crate::sources::process_timer;
use crate::sources::program_timer::{self, SETITIMER};
use crate::symbols::{self, Real};

static GETITIMER: Real = Real::new(c"getitimer");

/// Looks up the real functions.
pub(super) fn find_real_functions() {
    symbols::resolve(&[&SETITIMER, &GETITIMER]);
}

/// Whether `which` is the timer that the agent uses.
fn is_taken(which: c_int) -> bool {
    which == libc::ITIMER_PROF
        && own_recording().is_some_and(|recording| {
            recording.is_clocked_by(Clock::ProcessTimer) && !recording.process_time.is_given_up()
        })
}

/// POSIX `setitimer`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn setitimer(
    which: c_int,
    new: *const libc::itimerval,
    old: *mut libc::itimerval,
) -> c_int {
    if !is_taken(which) {
        return call_real!(
            SETITIMER as fn(c_int, *const libc::itimerval, *mut libc::itimerval) -> c_int,
            (which, new, old),
            else fail(libc::ENOSYS)
        );
    }
    // SAFETY: null, or valid by this function's contract.
    let (new, old) = unsafe { (new.as_ref(), old.as_mut()) };
    let Some(new) = new else { return fail(libc::EFAULT) };
    match program_timer::set(new) {
        Ok(before) => {
            if let Some(old) = old {
                *old = before;
            }
            0
        }
        Err(_) => {
            give_up();
            call_real!(
                SETITIMER as fn(c_int, *const libc::itimerval, *mut libc::itimerval) -> c_int,
                (which, new, old.map_or(core::ptr::null_mut(), core::ptr::from_mut)),
                else fail(libc::ENOSYS)
            )
        }
    }
}

/// Called when the program will set the kernel's timer without being seen.
pub(super) fn leave_to_program() {
    if is_taken(libc::ITIMER_PROF) {
        give_up();
    }
}

/// Called when no other timer can emulate the program's: it gets the kernel's from now on, and sampling ends.
fn give_up() {
    let (Some(_active), Some(recording)) = (Active::enter(), own_recording()) else { return };
    let _masked = Masked::new();
    process_timer::stop();
    signals::drain_process_timer();
    crate::process::give_timer_up(recording);
}

/// POSIX `getitimer`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getitimer(which: c_int, value: *mut libc::itimerval) -> c_int {
    if !is_taken(which) {
        return call_real!(
            GETITIMER as fn(c_int, *mut libc::itimerval) -> c_int,
            (which, value),
            else fail(libc::ENOSYS)
        );
    }
    // SAFETY: null, or valid by this function's contract.
    match unsafe { value.as_mut() } {
        Some(value) => {
            *value = program_timer::get();
            0
        }
        None => fail(libc::EFAULT),
    }
}
