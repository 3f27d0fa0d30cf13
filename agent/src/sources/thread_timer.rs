//! Timers of the kernel by `timer_create`, as the agent makes them outside the handler.

use handler::slot::Slot;
use handler::thread_timer::{self, SignalEvent};

use crate::kernel::Errno;

const _: () = assert!(size_of::<SignalEvent>() == 64);

/// Arms a timer on the CPU clock of the slot's thread, whose first period begins after `delay_ns` of it. Fails where the
/// user may not queue more signals (`ulimit -i`); the thread then is not sampled.
pub(super) fn arm(slot: &Slot, signal: i32, period_ns: u64, delay_ns: u64) -> Result<(), Errno> {
    thread_timer::arm(slot, signal, period_ns, delay_ns).map_err(Errno)
}

/// Makes a timer on the process's CPU clock that sends `signal` with `value` to the process.
pub(crate) fn create_process_clock_timer(signal: i32, value: usize) -> Result<i32, Errno> {
    let event = SignalEvent { value, signal, notify: libc::SIGEV_SIGNAL, thread: 0, padding: [0; 11] };
    thread_timer::create(libc::CLOCK_PROCESS_CPUTIME_ID as usize, &event).map_err(Errno)
}

/// Sets a timer made here.
pub(crate) fn set_timer(timer: i32, time: &libc::itimerspec) -> Result<(), Errno> {
    thread_timer::set(timer, time).map_err(Errno)
}

/// A stopped timer.
pub(crate) const NEVER: libc::itimerspec = libc::itimerspec {
    it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
    it_value: libc::timespec { tv_sec: 0, tv_nsec: 0 },
};

/// True if this user may have a timer: each counts against RLIMIT_SIGPENDING.
pub(super) fn may_be_had() -> bool {
    create_process_clock_timer(libc::SIGPROF, 0).map(thread_timer::delete).is_ok()
}

/// Deletes the timer of the slot's thread, if it has one.
pub(super) fn disarm(slot: &Slot) {
    thread_timer::disarm(slot);
}
