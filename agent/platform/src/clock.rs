//! The trace clock: the time-stamp counter if it is invariant, else CLOCK_MONOTONIC through the vDSO, in nanoseconds.
//! The choice is made once, before the first sample. A program that forbids itself the counter (PR_SET_TSC), which the
//! vDSO reads too, would be killed for reading either: then the clock stands still until it is permitted again.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::arch;
use crate::sys;

/// `clock_gettime` of the vDSO.
pub type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

/// Time is read from the counter.
const COUNTER: usize = 0;
/// Time is read by a system call, because the vDSO has no function for it.
const SYSTEM_CALL: usize = 1;

/// Time stands still.
const STOPPED: usize = 2;

/// `COUNTER`, `SYSTEM_CALL`, `STOPPED`, or the address of the vDSO's function.
static SOURCE: AtomicUsize = AtomicUsize::new(COUNTER);
/// What it was when time was stopped, and when that was.
static STOPPED_SOURCE: AtomicUsize = AtomicUsize::new(COUNTER);
static STOPPED_AT: AtomicU64 = AtomicU64::new(0);

/// Chooses the clock: CLOCK_MONOTONIC, through the vDSO if it has the function, unless the processor guarantees a constant
/// rate of the counter in every power state. A process that has `forbidden` itself either is not killed.
///
/// # Safety
/// `vdso` must be the vDSO's `clock_gettime`, and stay mapped.
pub unsafe fn choose(vdso: impl FnOnce() -> Option<ClockGettime>, forbidden: Forbidden) {
    let source = match forbidden {
        // The vDSO's function reads the counter.
        Forbidden { counter: true, .. } => SYSTEM_CALL,
        Forbidden { cpuid: false, .. } if arch::counter_is_invariant() => COUNTER,
        _ => vdso().map_or(SYSTEM_CALL, |function| function as usize),
    };
    SOURCE.store(source, Ordering::Relaxed);
}

/// What a process has forbidden itself, which would be killed for doing so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forbidden {
    /// To read the processor's counter (PR_SET_TSC).
    counter: bool,
    /// To ask the processor what it can do (ARCH_SET_CPUID).
    cpuid: bool,
}

impl Forbidden {
    /// Asks the kernel, which a filter may not permit.
    pub fn by_kernel() -> Self {
        let mut mode: libc::c_int = 0;
        // SAFETY: the kernel writes one integer.
        unsafe {
            sys::call(libc::SYS_prctl, [libc::PR_GET_TSC as usize, (&raw mut mode) as usize, 0, 0, 0, 0])
        };
        Self { counter: mode == libc::PR_TSC_SIGSEGV, cpuid: !arch::may_ask_processor() }
    }
}

/// Whether time is read from the processor's counter.
pub fn is_counter() -> bool {
    match SOURCE.load(Ordering::Relaxed) {
        STOPPED => STOPPED_SOURCE.load(Ordering::Relaxed) == COUNTER,
        source => source == COUNTER,
    }
}

/// Stops time, before the calling thread forbids itself the counter. Nothing if it stands still.
pub fn stop() {
    let source = SOURCE.load(Ordering::Relaxed);
    if source != STOPPED {
        STOPPED_AT.store(now(), Ordering::Relaxed);
        STOPPED_SOURCE.store(source, Ordering::Relaxed);
        // Whoever sees this sees the two before.
        SOURCE.store(STOPPED, Ordering::Release);
    }
}

/// Has time go on.
pub fn resume() {
    if SOURCE.load(Ordering::Relaxed) == STOPPED {
        SOURCE.store(STOPPED_SOURCE.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The current time in ticks.
#[inline]
pub fn now() -> u64 {
    match SOURCE.load(Ordering::Relaxed) {
        COUNTER => arch::counter(),
        source => elsewhere(source),
    }
}

#[cold]
fn elsewhere(source: usize) -> u64 {
    if source == STOPPED {
        core::sync::atomic::fence(Ordering::Acquire);
        return STOPPED_AT.load(Ordering::Relaxed);
    }
    monotonic(source)
}

fn monotonic(source: usize) -> u64 {
    if source == SYSTEM_CALL {
        return kernel_ns(libc::CLOCK_MONOTONIC);
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `use_monotonic` stored the address of such a function. It takes no lock that an interrupted thread could
    // hold.
    unsafe {
        let function = core::mem::transmute::<usize, ClockGettime>(source);
        function(libc::CLOCK_MONOTONIC, &raw mut time);
    }
    nanoseconds(time)
}

/// Nanoseconds in a second.
pub const SECOND_NS: u64 = 1_000_000_000;

/// CPU time of the process in nanoseconds, by a system call.
pub fn process_cpu_ns() -> u64 {
    kernel_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of the calling thread in nanoseconds, by a system call.
pub fn thread_cpu_ns() -> u64 {
    kernel_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of thread `tid` of this process in nanoseconds, by a system call; 0 if there is no such thread.
pub fn cpu_ns_of(tid: u32) -> u64 {
    kernel_ns(cpu_clock(tid))
}

/// The CPU clock id of thread `tid` (kernel: MAKE_THREAD_CPUCLOCK with CPUCLOCK_SCHED).
pub fn cpu_clock(tid: u32) -> libc::clockid_t {
    const PER_THREAD: u32 = 4;
    const SCHED: u32 = 2;
    (!tid << 3 | PER_THREAD | SCHED) as libc::clockid_t
}

/// CLOCK_MONOTONIC in nanoseconds, by a system call.
pub fn monotonic_ns() -> u64 {
    kernel_ns(libc::CLOCK_MONOTONIC)
}

fn kernel_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `timespec`.
    unsafe { sys::call(libc::SYS_clock_gettime, [clock as usize, (&raw mut time) as usize, 0, 0, 0, 0]) };
    nanoseconds(time)
}

fn nanoseconds(time: libc::timespec) -> u64 {
    (time.tv_sec as u64).wrapping_mul(SECOND_NS).wrapping_add(time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_forward_by_counter_and_by_kernel() {
        let first = now();
        assert!(now() >= first);
        let first = monotonic(SYSTEM_CALL);
        assert!(monotonic(SYSTEM_CALL) >= first);
    }
}
