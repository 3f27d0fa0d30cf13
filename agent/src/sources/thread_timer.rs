//! POSIX timers (`timer_create`), as the agent makes them outside the handler.

use handler::slot::Slot;
use handler::thread_timer::{self, SignalEvent, first_expiry};
use platform::clock;

use super::since::Since;
use crate::kernel::Errno;

const _: () = assert!(size_of::<SignalEvent>() == 64);

/// Arms a timer on the CPU clock of the slot's thread, to account for all of its time or from now on. Fails if the user
/// may not queue more signals (`ulimit -i`); the thread is then not sampled.
pub(super) fn arm(slot: &Slot, signal: i32, period_ns: u64, since: Since) -> Result<(), Errno> {
    let first_ns = first_expiry(period_ns, slot.tid().into());
    let used_ns = clock::cpu_ns_of(slot.tid());
    let earlier_ns = since.earlier_ns(used_ns);
    let begins_ns = used_ns - earlier_ns + since.delay_ns();
    slot.kernel_rings.count_time(begins_ns.wrapping_add(first_ns).wrapping_sub(period_ns), period_ns, false);
    // Expirations before now are left to the remainder's sample.
    let expired = (earlier_ns + period_ns).saturating_sub(first_ns) / period_ns;
    let next_ns = since.delay_ns() + first_ns + expired * period_ns - earlier_ns;
    thread_timer::arm(slot, signal, period_ns, next_ns).map_err(Errno)
}

/// Arms a timer in addition to perf events, which account for the thread's time.
pub(super) fn arm_beside_events(slot: &Slot, signal: i32, period_ns: u64, since: Since) -> Result<(), Errno> {
    let first_ns = since.delay_ns() + first_expiry(period_ns, slot.tid().into());
    thread_timer::arm(slot, signal, period_ns, first_ns).map_err(Errno)
}

/// Creates a timer on the process's CPU clock that sends `signal` with `value` to the process.
pub(crate) fn create_process_clock_timer(signal: i32, value: usize) -> Result<i32, Errno> {
    let event = SignalEvent { value, signal, notify: libc::SIGEV_SIGNAL, thread: 0, padding: [0; 11] };
    thread_timer::create(libc::CLOCK_PROCESS_CPUTIME_ID as usize, &event).map_err(Errno)
}

/// Sets a timer created here.
pub(crate) fn set_timer(timer: i32, time: &libc::itimerspec) -> Result<(), Errno> {
    thread_timer::set(timer, time).map_err(Errno)
}

/// A stopped timer.
pub(crate) const NEVER: libc::itimerspec = libc::itimerspec {
    it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
    it_value: libc::timespec { tv_sec: 0, tv_nsec: 0 },
};

/// Whether this user may create a timer: each counts against RLIMIT_SIGPENDING.
pub(super) fn may_be_had() -> bool {
    create_process_clock_timer(libc::SIGPROF, 0).map(thread_timer::delete).is_ok()
}

/// Deletes the timer of the slot's thread, if it has one.
pub(super) fn disarm(slot: &Slot) {
    thread_timer::disarm(slot);
}
