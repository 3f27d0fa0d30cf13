//! System calls that install a seccomp filter or have system calls delivered as signals (Syscall User Dispatch), and raw system
//! calls that would bypass the interposed functions.
//!
//! Once the program has installed a filter, any system call that the program itself would not make may kill it. From
//! then on the agent makes none: no timers for new threads, no probes, no wake-ups of the reader.

use core::ffi::{c_int, c_long, c_ulong};
use core::sync::atomic::Ordering;

use handler::recording::{self, Clock, Recording};
use handler::slot::{self, Slot};
use platform::activity::{self, Active};
use platform::clock;

use super::real::{call_real, fail, own_recording, real_functions};
use super::{exec, signals, stacks, tracing};
use crate::agent::{self, Agent};
use crate::call_filter;
use crate::journal;
use crate::kernel;
use crate::live_tables;
use crate::lock::Masked;
use crate::preload;
use crate::process;
use crate::sources;

real_functions! {
    PRCTL = c"prctl";
    SYSCALL = c"syscall";
}

/// Log space for the records of a filtered process, which cannot make more.
const LOG: u64 = 64 << 10;
/// The same if its handlers append to the log.
const OPEN_LOG: u64 = 4 << 20;
/// Longest wait for other threads to finish system calls that the filter may forbid.
const PATIENCE_NS: u64 = 200_000_000;

/// PR_SET_SYSCALL_USER_DISPATCH of prctl(2), and its mode that ends it.
const SET_DISPATCH: c_int = 59;
const DISPATCH_OFF: c_ulong = 0;

/// What is about to restrict system calls.
#[derive(Clone, Copy)]
enum Filter {
    /// Strict mode of seccomp(2).
    Strict,
    /// A filter whose description is at this address.
    At(usize),
    /// Syscall User Dispatch. The agent's calls would be delivered to the program, even the return from the handler. An exec
    /// ends it.
    Dispatch,
}

impl Filter {
    fn permits_signals(self) -> bool {
        match self {
            Filter::Strict => true,
            Filter::At(filter) => call_filter::permits_signals(filter),
            Filter::Dispatch => false,
        }
    }

    fn prepare_exec(self) {
        match self {
            Filter::Strict => preload::look(0),
            Filter::At(filter) => preload::look(filter),
            Filter::Dispatch => {}
        }
    }
}

/// Ends sampling for good around `install`, which has the calling thread's system calls delivered as signals.
fn dispatching(install: impl FnOnce() -> c_long) -> c_long {
    if !agent::is_own_process() || activity::is_filtered() {
        return install();
    }
    let result = filtering(Filter::Dispatch, install);
    activity::set_inherited(result < 0);
    result
}

/// Marks the process as filtered around `install`, unless the filter could not be installed.
fn filtering(filter: Filter, install: impl FnOnce() -> c_long) -> c_long {
    let announced = Announced::filter(filter);
    let result = install();
    announced.installed(result >= 0);
    result
}

/// A filter that is about to be installed.
struct Announced {
    /// There is an earlier one.
    before: bool,
    /// Which permits the agent's system calls.
    permitted: bool,
    /// What is to be resumed should the kernel refuse the filter.
    ended: Option<(&'static Recording, &'static Agent)>,
}

impl Announced {
    fn filter(filter: Filter) -> Announced {
        let (before, permitted) = (activity::is_filtered(), call_filter::permit_agents());
        if let Some(recording) = own_recording() {
            // Handlers cannot back it any more.
            let is_open = recording.region.durable_open() > 0;
            let wanted = if is_open { OPEN_LOG } else { LOG };
            journal::make_log(recording, recording.region.durable_used() + wanted);
            if let Some(blocks) = &recording.live_blocks {
                live_tables::grow_blocks(blocks);
            }
            if let Some(counts) = &recording.allocation_counts {
                live_tables::grow_counts(counts);
            }
        }
        activity::announce_filter();
        // Threads inside the agent finish soon, unless killed there (a child of `vfork` shares the count).
        let begun = kernel::clock_ns(libc::CLOCK_MONOTONIC);
        while activity::anybody() && kernel::clock_ns(libc::CLOCK_MONOTONIC) - begun < PATIENCE_NS {
            kernel::yield_now();
        }
        // From here on no other thread makes system calls for the agent, nor starts to be sampled; and this thread makes
        // those that the earlier filters permit.
        let ended = if !before || permitted { prepare(filter, before) } else { None };
        Announced { before, permitted, ended }
    }

    fn installed(self, is_installed: bool) {
        if is_installed {
            activity::set_inherited(true);
            return;
        }
        activity::set_filtered(self.before);
        call_filter::set_permit_agents(self.permitted);
        if let Some((recording, agent)) = self.ended {
            let _masked = Masked::new();
            process::resume(recording, agent, self.before);
        }
    }
}

/// Before a filter, the first one unless `before`: makes ready what needs system calls, and ends what would need them later.
/// Returns what is to be resumed should the kernel refuse the filter.
fn prepare(filter: Filter, before: bool) -> Option<(&'static Recording, &'static Agent)> {
    // Signals that are pending for this thread come when this ends.
    let _masked = Masked::new();
    let permits_signals = filter.permits_signals();
    filter.prepare_exec();
    let (recording, agent) = (own_recording()?, agent::get()?);
    // No memory can be mapped after this.
    slot::taken().for_each(Slot::prepare_early);
    let mut ended = !before && stop_process_timer(recording);
    if !permits_signals {
        process::refuse_requests(recording);
        sources::end_all();
        let why = match filter {
            Filter::Dispatch => {
                &b"the program has its system calls delivered as signals (PR_SET_SYSCALL_USER_DISPATCH)"[..]
            }
            _ => b"a filter of system calls permits no return from a signal",
        };
        journal::tell_setting(recording, b"stopped", why);
        ended = true;
    } else if !before {
        ended |= sources::end_events(recording, &agent.config);
    }
    ended.then_some((recording, agent))
}

/// The same in an unrecorded child of a bare `clone`: its exec may make no system call of the agent afterwards.
fn filtering_unrecorded(filter: usize, install: impl FnOnce() -> c_long) -> c_long {
    let (before, permitted) = (activity::is_filtered(), call_filter::permit_agents());
    // A process that sees a recording of another process shares its memory.
    let is_apart = recording::current().is_none();
    if is_apart {
        preload::look(filter);
        activity::announce_filter();
    }
    let result = install();
    if is_apart && result < 0 {
        activity::set_filtered(before);
        call_filter::set_permit_agents(permitted);
    }
    result
}

/// Stops ITIMER_PROF: it would survive an exec, before which it can no longer be stopped under the filter, and its
/// signal would kill the next image. False if it is not the source.
fn stop_process_timer(recording: &Recording) -> bool {
    let is_used = recording.is_clocked_by(Clock::ProcessTimer);
    if is_used {
        process::silence_thread(recording, b"itimer ends where the program filters its system calls");
    }
    is_used
}

/// The calling thread is about to lose access to the time-stamp counter, which the handler reads: stop its ticks, or
/// those of the process if it has one timer. Strict mode also disables the counter (kernel/seccomp.c).
fn without_counter() {
    let recording = own_recording();
    if let (Some(_active), Some(recording)) = (Active::enter(), recording) {
        process::silence_thread(recording, b"the program forbids the time-stamp counter");
    }
    // A child of `vfork` would stop its parent's.
    if recording.is_some() {
        clock::stop();
    }
}

/// Whether a call with this mode may install a filter. Libraries probe for supported flags without a filter.
fn installs(mode: c_ulong, filter: usize) -> bool {
    mode == libc::SECCOMP_MODE_STRICT.into() || (mode == libc::SECCOMP_MODE_FILTER.into() && filter != 0)
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
    } else if option == libc::PR_SET_TSC {
        let result = real();
        if agent::is_own_process() {
            clock::resume();
        }
        return result;
    }
    match option {
        libc::PR_SET_SECCOMP if installs(second, third as usize) => {
            let install = || real().into();
            (match agent::is_own_process() {
                true if takes_counter => filtering(Filter::Strict, install),
                true => filtering(Filter::At(third as usize), install),
                false => filtering_unrecorded(third as usize, install),
            }) as c_int
        }
        SET_DISPATCH if second != DISPATCH_OFF => dispatching(|| real().into()) as c_int,
        libc::PR_SET_NAME => {
            let result = real();
            super::threads::renamed();
            result
        }
        _ => real(),
    }
}

/// The C library's `syscall`. All but a few calls jump straight to the real function. In the build that watches locks,
/// `futex::syscall` comes first.
///
/// # Safety
/// As the C library says.
#[cfg_attr(not(feature = "locks"), unsafe(no_mangle))]
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
        "cmp rdi, {ptrace}",
        "je 2f",
        "mov rax, [rip + {real}]",
        "test rax, rax",
        "je 2f",
        "jmp rax",
        // Number and five arguments are in registers, the sixth is above the return address.
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
        ptrace = const libc::SYS_ptrace,
        real = sym REAL_SYSCALL,
        seen = sym seen,
    )
}

/// Address of the real `syscall` to jump to; 0 until it is known.
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
    let real_with = |third, fourth| {
        call_real!(
            SYSCALL as fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long,
            (number, first, second, third, fourth, fifth, sixth),
            else fail(libc::ENOSYS).into()
        )
    };
    let real = || real_with(third, fourth);
    if let Some(address) = SYSCALL.known() {
        REAL_SYSCALL.store(address, Ordering::Relaxed);
    }
    let sets_filter = match number {
        // The modes of `prctl` are the operations of seccomp(2) plus one.
        libc::SYS_seccomp => installs(first as c_ulong + 1, third),
        libc::SYS_prctl => first == libc::PR_SET_SECCOMP as usize && installs(second as c_ulong, third),
        _ => false,
    };
    // Libraries pass flags that are never valid, to find out whether the call exists.
    let strict = [libc::SECCOMP_SET_MODE_STRICT as usize, 0, 0];
    if number == libc::SYS_seccomp && [first, second, third] == strict {
        without_counter();
    }
    match number {
        _ if sets_filter && agent::is_own_process() => {
            let is_strict = number == libc::SYS_seccomp && first == libc::SECCOMP_SET_MODE_STRICT as usize
                || number == libc::SYS_prctl && second == libc::SECCOMP_MODE_STRICT as usize;
            filtering(if is_strict { Filter::Strict } else { Filter::At(third) }, real)
        }
        libc::SYS_prctl if first == SET_DISPATCH as usize && second as c_ulong != DISPATCH_OFF => {
            dispatching(real)
        }
        _ if sets_filter => filtering_unrecorded(third, real),
        // SAFETY: the arguments are those of the system call.
        libc::SYS_execve => unsafe { exec::bare(first, false, third, |third| real_with(third, fourth)) },
        // SAFETY: the arguments are those of the system call.
        libc::SYS_execveat => unsafe { exec::bare(second, true, fourth, |fourth| real_with(third, fourth)) },
        libc::SYS_ptrace if tracing::asks(first as c_int) => tracing::asking(real),
        // SAFETY: the arguments are those of the call.
        libc::SYS_rt_sigaction => unsafe { signals::bare(first, second, third, fourth) }.unwrap_or_else(real),
        // SAFETY: the arguments are those of the system call, which takes null or valid pointers.
        libc::SYS_sigaltstack => unsafe { stacks::sigaltstack(first as *const _, second as *mut _) }.into(),
        _ => real(),
    }
}
