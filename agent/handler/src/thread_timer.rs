//! A POSIX timer on the CPU clock of one thread, whose signals go to that thread and carry its slot.

use core::ptr;

use platform::clock::{self, SECOND_NS};
use platform::sys;

use crate::slot::Slot;

/// The kernel's `struct sigevent` for signalling a thread.
#[repr(C)]
pub struct SignalEvent {
    /// The value of the signal.
    pub value: usize,
    /// Number of the signal.
    pub signal: i32,
    /// How it is delivered (SIGEV_).
    pub notify: i32,
    /// The thread, if it is delivered to one.
    pub thread: i32,
    /// Unused.
    pub padding: [i32; 11],
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / SECOND_NS) as i64, tv_nsec: (ns % SECOND_NS) as i64 }
}

/// Time to the first expiry: random within the period, at least one nanosecond.
pub fn first_expiry(period_ns: u64, salt: u64) -> u64 {
    let mixed = (clock::now() ^ salt.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(mixed) * u128::from(period_ns)) >> 64) as u64 + 1
}

/// Creates a timer. Returns its id, or the kernel's error.
pub fn create(clock: usize, event: &SignalEvent) -> Result<i32, i32> {
    let mut timer = 0i32;
    let arguments = [clock, ptr::from_ref(event) as usize, (&raw mut timer) as usize, 0, 0, 0];
    // SAFETY: the kernel reads one `sigevent` and writes one timer id.
    match unsafe { sys::call(libc::SYS_timer_create, arguments) } {
        0 => Ok(timer),
        error => Err(-error as i32),
    }
}

/// Arms a timer for the slot's thread that first expires after `first_ns` of its CPU time. Fails if the user may not
/// queue more signals (`ulimit -i`), or the thread has ended.
pub fn arm(slot: &Slot, signal: i32, period_ns: u64, first_ns: u64) -> Result<(), i32> {
    let tid = slot.tid();
    let event = SignalEvent {
        value: slot.token() as usize,
        signal,
        notify: libc::SIGEV_THREAD_ID,
        thread: tid as i32,
        padding: [0; 11],
    };
    let timer = create(clock::cpu_clock(tid) as usize, &event)?;
    slot.set_timer(timer);
    let time = libc::itimerspec { it_interval: timespec(period_ns), it_value: timespec(first_ns.max(1)) };
    set(timer, &time)
}

/// Sets a timer created here.
pub fn set(timer: i32, time: &libc::itimerspec) -> Result<(), i32> {
    let arguments = [timer as usize, 0, ptr::from_ref(time) as usize, 0, 0, 0];
    // SAFETY: the kernel reads one `itimerspec`; the timer is the agent's.
    match unsafe { sys::call(libc::SYS_timer_settime, arguments) } {
        0 => Ok(()),
        error => Err(-error as i32),
    }
}

/// Whether a timer on a thread's clock can no longer expire, because the thread has ended (kernel: posix_cpu_timer_get
/// finds no task). A running timer has time left.
pub(crate) fn is_dead(timer: i32) -> bool {
    let mut left = [0u64; 4];
    // SAFETY: the kernel writes one `itimerspec`, four words; the timer is the agent's.
    let asked =
        unsafe { sys::call(libc::SYS_timer_gettime, [timer as usize, (&raw mut left) as usize, 0, 0, 0, 0]) };
    // The interval, then the time left.
    asked != 0 || matches!(left, [_, _, 0, 0])
}

/// Deletes a timer created here.
pub fn delete(timer: i32) {
    // SAFETY: the timer is the agent's and is not used again.
    unsafe { sys::call(libc::SYS_timer_delete, [timer as usize, 0, 0, 0, 0, 0]) };
}

/// Deletes the timer of the slot's thread, if it has one.
pub fn disarm(slot: &Slot) {
    let timer = slot.timer();
    if timer != Slot::NO_TIMER {
        slot.set_timer(Slot::NO_TIMER);
        delete(timer);
    }
}
