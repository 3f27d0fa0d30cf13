//! System calls that restrict system calls, and bare ones that would pass us by.
//!
//! Once the program has installed a filter, any call that the program would not make itself may kill it. From then
//! on the agent makes none: no timers for new threads, no probes, no wakes of the reader.

use core::ffi::{c_int, c_long, c_ulong};

use handler::activity::{self, Active};
use handler::process::{self, Recording, Source};

use super::{call_real, exec, fail, own_recording, real_functions, signals};
use crate::agent::{self, Agent};
use crate::kernel;

real_functions! {
    PRCTL = c"prctl";
    SYSCALL = c"syscall";
}

/// Remembers that calls may be filtered, unless the filter could not be installed.
fn filtering(install: impl FnOnce() -> c_long) -> c_long {
    let before = process::is_filtered();
    let stopped = stop_process_timer();
    activity::announce_filter();
    while activity::anybody() {
        kernel::yield_now();
    }
    let result = install();
    if result < 0 {
        process::set_filtered(before);
        if let (Some((recording, agent)), false) = (stopped, before) {
            crate::process::start_source(recording, agent);
        }
    }
    result
}

/// ITIMER_PROF lives on through an exec, before which nobody could stop it any more: its signal would kill the next
/// image.
fn stop_process_timer() -> Option<(&'static Recording, &'static Agent)> {
    let _active = Active::enter()?;
    let recording = own_recording().filter(|recording| recording.source == Source::ProcessTimer)?;
    crate::process::silence_thread(recording, b"itimer ends where the program filters its system calls");
    Some((recording, agent::get()?))
}

/// The calling thread is about to lose the time-stamp counter, which the handler reads: no more ticks for it, or
/// for anybody if the timer is the process's. Strict mode takes the counter away too (kernel/seccomp.c).
fn without_counter() {
    if let (Some(_active), Some(recording)) = (Active::enter(), own_recording()) {
        crate::process::silence_thread(recording, b"the program forbids the time-stamp counter");
    }
}

/// Linux `prctl`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    let real = || {
        call_real!(
            PRCTL as fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int,
            (option, second, third, fourth, fifth),
            else fail(libc::ENOSYS)
        )
    };
    const PR_TSC_SIGSEGV: c_ulong = 2;
    let takes_counter = match option {
        libc::PR_SET_SECCOMP => second == libc::SECCOMP_MODE_STRICT.into(),
        libc::PR_SET_TSC => second == PR_TSC_SIGSEGV,
        _ => false,
    };
    if takes_counter {
        without_counter();
    }
    match option {
        libc::PR_SET_SECCOMP if crate::agent::is_own_process() => filtering(|| real().into()) as c_int,
        libc::PR_SET_NAME => {
            let result = real();
            super::threads::renamed();
            result
        }
        _ => real(),
    }
}

/// The C library's `syscall`. All but a few calls jump straight on.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn syscall(number: c_long) -> c_long {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "cmp rdi, {seccomp}",
        "je 2f",
        "cmp rdi, {prctl}",
        "je 2f",
        "cmp rdi, {execve}",
        "je 2f",
        "cmp rdi, {execveat}",
        "je 2f",
        "cmp rdi, {rt_sigaction}",
        "je 2f",
        "mov rax, [rip + {real}]",
        "test rax, rax",
        "je 2f",
        "jmp rax",
        // number and five arguments in registers, the sixth above the return address.
        "2:",
        "push [rsp + 8]",
        ".cfi_adjust_cfa_offset 8",
        "call {seen}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        seccomp = const libc::SYS_seccomp,
        prctl = const libc::SYS_prctl,
        execve = const libc::SYS_execve,
        execveat = const libc::SYS_execveat,
        rt_sigaction = const libc::SYS_rt_sigaction,
        real = sym REAL_SYSCALL,
        seen = sym seen,
    )
}

/// The real `syscall`, for the jump; 0 until it is known.
static REAL_SYSCALL: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);

unsafe extern "C" fn seen(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    let real = || {
        call_real!(
            SYSCALL as fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long,
            (number, first, second, third, fourth, fifth, sixth),
            else fail(libc::ENOSYS).into()
        )
    };
    if let Some(address) = SYSCALL.known() {
        REAL_SYSCALL.store(address, core::sync::atomic::Ordering::Relaxed);
    }
    let sets_filter = match number {
        libc::SYS_seccomp => first <= libc::SECCOMP_SET_MODE_FILTER as usize,
        libc::SYS_prctl => first == libc::PR_SET_SECCOMP as usize,
        _ => false,
    };
    // Libraries ask with flags that are never valid, to learn whether the call exists.
    let strict = [libc::SECCOMP_SET_MODE_STRICT as usize, 0, 0];
    if number == libc::SYS_seccomp && [first, second, third] == strict {
        without_counter();
    }
    match number {
        _ if sets_filter && crate::agent::is_own_process() => filtering(real),
        libc::SYS_execve => exec::around(first, real),
        libc::SYS_execveat => exec::around(second, real),
        // SAFETY: the arguments are those of the call.
        libc::SYS_rt_sigaction => unsafe { signals::bare(first, second, third, fourth) }.unwrap_or_else(real),
        _ => real(),
    }
}
