//! Timers of the kernel by `timer_create`: one on each thread's CPU clock.

use handler::slot::Slot;

use super::first_expiry;
use crate::kernel::{self, Errno};

/// The kernel's `struct sigevent` with a thread to signal.
#[repr(C)]
struct SignalEvent {
    value: usize,
    signal: i32,
    notify: i32,
    thread: i32,
    padding: [i32; 11],
}

const _: () = assert!(size_of::<SignalEvent>() == 64);

/// The clock of the CPU time of thread `tid` (kernel: MAKE_THREAD_CPUCLOCK with CPUCLOCK_SCHED).
fn cpu_clock(tid: u32) -> usize {
    const PER_THREAD: u32 = 4;
    const SCHED: u32 = 2;
    (!tid << 3 | PER_THREAD | SCHED) as i32 as usize
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// Arms a timer on the CPU clock of the slot's thread. Fails where the user may not queue more signals
/// (`ulimit -i`); the thread then is not sampled.
pub(super) fn arm(slot: &Slot, signal: i32, period_ns: u64) -> Result<(), Errno> {
    let tid = slot.tid();
    let event = SignalEvent {
        value: core::ptr::from_ref(slot) as usize,
        signal,
        notify: libc::SIGEV_THREAD_ID,
        thread: tid as i32,
        padding: [0; 11],
    };
    let mut timer = 0i32;
    let arguments = [cpu_clock(tid), (&raw const event) as usize, (&raw mut timer) as usize, 0, 0, 0];
    // SAFETY: the kernel reads one `sigevent` and writes one timer id.
    unsafe { kernel::call(libc::SYS_timer_create, arguments) }?;
    slot.set_timer(timer);
    let time = libc::itimerspec {
        it_interval: timespec(period_ns),
        it_value: timespec(first_expiry(period_ns, tid.into())),
    };
    set_timer(timer, &time)
}

/// Makes a timer on the process's CPU clock that sends `signal` with `value` to the process.
pub(crate) fn create_process_clock_timer(signal: i32, value: usize) -> Result<i32, Errno> {
    let event = SignalEvent { value, signal, notify: libc::SIGEV_SIGNAL, thread: 0, padding: [0; 11] };
    let mut timer = 0i32;
    let clock = libc::CLOCK_PROCESS_CPUTIME_ID as usize;
    let arguments = [clock, (&raw const event) as usize, (&raw mut timer) as usize, 0, 0, 0];
    // SAFETY: the kernel reads one `sigevent` and writes one timer id.
    unsafe { kernel::call(libc::SYS_timer_create, arguments) }?;
    Ok(timer)
}

/// Sets a timer made here.
pub(crate) fn set_timer(timer: i32, time: &libc::itimerspec) -> Result<(), Errno> {
    let arguments = [timer as usize, 0, core::ptr::from_ref(time) as usize, 0, 0, 0];
    // SAFETY: the kernel reads one `itimerspec`; the timer is ours.
    unsafe { kernel::call(libc::SYS_timer_settime, arguments) }.map(drop)
}

/// A stopped timer.
pub(crate) const NEVER: libc::itimerspec = libc::itimerspec {
    it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
    it_value: libc::timespec { tv_sec: 0, tv_nsec: 0 },
};

/// True if this user may have a timer: each counts against RLIMIT_SIGPENDING.
pub(super) fn may_be_had() -> bool {
    create_process_clock_timer(libc::SIGPROF, 0).map(delete_timer).is_ok()
}

fn delete_timer(timer: i32) {
    // SAFETY: the timer is ours and is not used again.
    let _ = unsafe { kernel::call(libc::SYS_timer_delete, [timer as usize, 0, 0, 0, 0, 0]) };
}

/// Deletes the timer of the slot's thread, if it has one.
pub(super) fn disarm(slot: &Slot) {
    let timer = slot.timer();
    if timer != Slot::NO_TIMER {
        slot.set_timer(Slot::NO_TIMER);
        delete_timer(timer);
    }
}
