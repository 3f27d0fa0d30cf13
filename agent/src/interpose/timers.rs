//! The program's own ITIMER_PROF, while ours is the kernel's.
//!
//! There is one ITIMER_PROF per process. When it is the source of samples, the program's is a timer on the
//! process's CPU clock, which counts the same time; [`handler::chain`] makes its signal look like the original.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, Ordering};

use handler::chain;
use handler::process::Source;

use super::{call_real, fail, own_recording, real_functions};
use crate::kernel::{self, Errno};
use crate::lock::Masked;
use crate::signals;
use crate::sources::{self, process_timer};
use crate::symbols;
use handler::activity::Active;

real_functions! {
    SETITIMER = c"setitimer";
    GETITIMER = c"getitimer";
}

const NONE: i32 = -1;
/// The kernel's timer that stands in for the program's ITIMER_PROF.
static STAND_IN: AtomicI32 = AtomicI32::new(NONE);

pub(super) fn find_real_functions() {
    symbols::resolve(&REAL);
}

/// Forgets the timer in a forked child, which does not inherit it.
pub(crate) fn forget() {
    STAND_IN.store(NONE, Ordering::Relaxed);
}

/// True if `which` is the timer that the agent has taken.
fn is_taken(which: c_int) -> bool {
    which == libc::ITIMER_PROF
        && own_recording().is_some_and(|recording| {
            recording.source == Source::ProcessTimer && !recording.process_time.is_given_up()
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
    // SAFETY: null or the program's own.
    let (new, old) = unsafe { (new.as_ref(), old.as_mut()) };
    let Some(new) = new else { return fail(libc::EFAULT) };
    match set(new) {
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

/// The program's timer cannot have a stand-in: it has the kernel's from now on, and ours is over.
fn give_up() {
    let (Some(_active), Some(recording)) = (Active::enter(), own_recording()) else { return };
    let _masked = Masked::new();
    process_timer::stop();
    signals::drain_process_timer();
    crate::process::give_timer_up(recording);
}

/// As [`crate::interpose::stand_in_for`].
pub(super) fn stand_in_for(left: &libc::itimerval) -> bool {
    SETITIMER.known().is_some() && set(left).is_ok()
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
    // SAFETY: null or the program's own.
    match unsafe { value.as_mut() } {
        Some(value) => {
            *value = get();
            0
        }
        None => fail(libc::EFAULT),
    }
}

fn timespec(time: libc::timeval) -> libc::timespec {
    libc::timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec.saturating_mul(1000) }
}

fn timeval(time: libc::timespec) -> libc::timeval {
    // Rounded up: an armed timer must not read as a stopped one.
    libc::timeval { tv_sec: time.tv_sec, tv_usec: ((time.tv_nsec + 999) / 1000).min(999_999) }
}

/// What is left of the program's timer.
pub(super) fn get() -> libc::itimerval {
    let mut left: libc::itimerspec = sources::NEVER;
    let timer = STAND_IN.load(Ordering::Relaxed);
    if timer != NONE {
        // SAFETY: the kernel writes one `itimerspec`; the timer is ours.
        let _ = unsafe {
            kernel::call(libc::SYS_timer_gettime, [timer as usize, (&raw mut left) as usize, 0, 0, 0, 0])
        };
    }
    libc::itimerval { it_interval: timeval(left.it_interval), it_value: timeval(left.it_value) }
}

/// Sets the program's timer and returns what was left of it.
fn set(new: &libc::itimerval) -> Result<libc::itimerval, Errno> {
    let before = get();
    let time = libc::itimerspec { it_interval: timespec(new.it_interval), it_value: timespec(new.it_value) };
    let stopped = new.it_value.tv_sec == 0 && new.it_value.tv_usec == 0;
    if STAND_IN.load(Ordering::Relaxed) == NONE {
        if stopped {
            return Ok(before);
        }
        let timer = sources::create_process_clock_timer(libc::SIGPROF, chain::stand_in())?;
        STAND_IN.store(timer, Ordering::Relaxed);
    }
    sources::set_timer(STAND_IN.load(Ordering::Relaxed), &time)?;
    Ok(before)
}
