//! ITIMER_PROF: one timer for the process.

use handler::thread_timer::first_expiry;
use platform::clock::SECOND_NS;

use crate::kernel::{self, Errno};

fn timeval(ns: u64) -> libc::timeval {
    // Zero would disarm the timer.
    libc::timeval {
        tv_sec: (ns / SECOND_NS) as i64,
        tv_usec: (ns % SECOND_NS / 1000).max(u64::from(ns < SECOND_NS)) as i64,
    }
}

/// Arms ITIMER_PROF with the sampling period.
pub(crate) fn start(period_ns: u64) -> Result<(), Errno> {
    set(&libc::itimerval { it_interval: timeval(period_ns), it_value: timeval(first_expiry(period_ns, 0)) })
}

/// The remaining time of ITIMER_PROF.
pub(crate) fn get() -> libc::itimerval {
    let zero = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut left = libc::itimerval { it_interval: zero, it_value: zero };
    let arguments = [libc::ITIMER_PROF as usize, (&raw mut left) as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes one `itimerval`.
    let _ = unsafe { kernel::call(libc::SYS_getitimer, arguments) };
    left
}

/// Whether the timer is running.
pub(crate) fn is_armed(time: &libc::itimerval) -> bool {
    time.it_value.tv_sec != 0 || time.it_value.tv_usec != 0
}

/// Stops ITIMER_PROF.
pub(crate) fn stop() {
    let zero = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let _ = set(&libc::itimerval { it_interval: zero, it_value: zero });
}

/// Sets ITIMER_PROF.
pub(crate) fn set(time: &libc::itimerval) -> Result<(), Errno> {
    let arguments = [libc::ITIMER_PROF as usize, core::ptr::from_ref(time) as usize, 0, 0, 0, 0];
    // SAFETY: the kernel reads one `itimerval`.
    unsafe { kernel::call(libc::SYS_setitimer, arguments) }.map(drop)
}
