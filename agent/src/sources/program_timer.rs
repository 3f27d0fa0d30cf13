//! Emulates the program's ITIMER_PROF while the agent uses the kernel's.
//!
//! There is one ITIMER_PROF per process. If it is the source of samples, the program's is replaced by a timer on the
//! process's CPU clock, which counts the same time; [`handler::chain`] makes its signal look like the original.

use core::sync::atomic::{AtomicI32, Ordering};

use handler::chain;

use super::thread_timer::{NEVER, create_process_clock_timer, set_timer};
use crate::kernel::{self, Errno};
use crate::symbols::Real;

/// The function with which the program sets it.
pub(crate) static SETITIMER: Real = Real::new(c"setitimer");

const NONE: i32 = -1;
/// The kernel timer that replaces it.
static FALLBACK: AtomicI32 = AtomicI32::new(NONE);

/// Forgets the timer in a forked child, which does not inherit it.
pub(crate) fn forget() {
    FALLBACK.store(NONE, Ordering::Relaxed);
}

/// Replaces the program's timer, which has `left` remaining, by another one. False if there can be none, or if the
/// program's calls are not interposed.
pub(crate) fn replace(left: &libc::itimerval) -> bool {
    SETITIMER.known().is_some() && set(left).is_ok()
}

fn timespec(time: libc::timeval) -> libc::timespec {
    libc::timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec.saturating_mul(1000) }
}

fn timeval(time: libc::timespec) -> libc::timeval {
    // Rounded up: a running timer must not read as stopped.
    libc::timeval { tv_sec: time.tv_sec, tv_usec: ((time.tv_nsec + 999) / 1000).min(999_999) }
}

/// The remaining time of the program's timer.
pub(crate) fn get() -> libc::itimerval {
    let mut left: libc::itimerspec = NEVER;
    let timer = FALLBACK.load(Ordering::Relaxed);
    if timer != NONE {
        // SAFETY: the kernel writes one `itimerspec`; the timer is ours.
        let _ = unsafe {
            kernel::call(libc::SYS_timer_gettime, [timer as usize, (&raw mut left) as usize, 0, 0, 0, 0])
        };
    }
    libc::itimerval { it_interval: timeval(left.it_interval), it_value: timeval(left.it_value) }
}

/// Sets the program's timer and returns what remained of it.
pub(crate) fn set(new: &libc::itimerval) -> Result<libc::itimerval, Errno> {
    let before = get();
    let time = libc::itimerspec { it_interval: timespec(new.it_interval), it_value: timespec(new.it_value) };
    let stopped = new.it_value.tv_sec == 0 && new.it_value.tv_usec == 0;
    if FALLBACK.load(Ordering::Relaxed) == NONE {
        if stopped {
            return Ok(before);
        }
        let timer = create_process_clock_timer(libc::SIGPROF, chain::fallback_value())?;
        FALLBACK.store(timer, Ordering::Relaxed);
    }
    set_timer(FALLBACK.load(Ordering::Relaxed), &time)?;
    Ok(before)
}
