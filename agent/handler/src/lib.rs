//! Everything that runs inside the sampling signal handler: the samples of threads, and the calls that are recorded.
//!
//! The frames of interpreters are read by the crate `interpreter`. What both use of the machine and the kernel is in the crate
//! `platform`. What must never happen here must not happen there.
//!
//! The handler may interrupt a thread anywhere: while it holds the allocator's or the loader's lock, with two kibibytes
//! of stack left, on a stack that the agent does not know, or while unaligned accesses fault. So nothing here allocates,
//! takes a lock, waits, calls into a C library, touches `errno`, or can panic, and nothing is initialised on first use. A
//! system call is made only where doing without it would be worse; once the program has installed a seccomp filter, none is
//! made for a sample:
//!
//! - any sample: rt_sigprocmask, getpid, process_vm_readv (to read memory that is not known to be mapped), futex (one
//!   wake-up of a sleeping reader);
//! - the first sample of a thread: mmap, munlock, mprotect (its workspace); gettid if its thread-local word does not
//!   name its slot;
//! - with ITIMER_PROF, with perf events on CPU time, or with a rate limit: clock_gettime;
//! - every eighth perf event on CPU time, by default: getrusage (`frequent_switches`); if the thread switches often, once:
//!   timer_create, timer_settime, timer_delete, munmap;
//! - a perf event that has interrupted a wait which the kernel will repeat: rt_sigpending, rt_sigaction (`interrupted_wait`);
//! - a perf event that reports off-CPU time: openat, read, close (`delay`, which gives the reason);
//! - code that no rule covers, in a module without a table file, after the recorder has told of new ones: openat, fstat,
//!   geteuid, mmap, close, and munmap if the file is not what it should be (`adoption`);
//! - once for each unregistered thread: gettid, getpid, prctl (its name), tgkill with signal 0 (to find ended threads),
//!   timer_create, timer_settime, timer_gettime, timer_delete, clock_gettime, munmap;
//! - the first tick after the end of a recording: timer_settime or setitimer, or munmap of the perf rings;
//! - a signal that is the program's own, filter or not: rt_sigprocmask, rt_tgsigqueueinfo, and, if its default action
//!   ends the process, rt_sigaction and tgkill.
//!
//! The kernel runs the handler with all signals blocked, on the thread's alternate signal stack: the program's, or one
//! of the agent's.
#![no_std]
#![warn(missing_docs)]
#![warn(clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_macros))]

mod adoption;
mod appended_stack;
mod arch;
pub mod call;
pub mod caller;
mod capture;
pub mod chain;
pub mod context;
mod copy;
pub mod decimal;
mod delay;
mod discovery;
pub mod entry;
mod event_stack;
mod frequent_switches;
pub mod generated;
pub mod interrupted_wait;
pub mod kernel_answer;
pub mod kernel_ring;
pub mod late_start;
mod learned_stack;
pub mod nesting;
mod ordinary_walk;
mod other_rules;
mod outcome;
mod owner;
mod probed_pages;
pub mod process_time;
pub mod program;
pub mod rate_limit;
mod recent_stacks;
pub mod recording;
mod recurring;
pub mod remainder;
pub mod request;
mod sample;
pub mod shared_stack;
pub mod siginfo;
pub mod signal_stack;
pub mod slot;
pub mod snapshot;
pub mod stack;
pub mod switch_limit;
pub mod thread_timer;
pub mod tick;
pub mod tracepoint;
pub mod unwinding;

use core::ffi::c_int;

use platform::clock;
use shm_format::{Skip, StackHead};

use crate::chain::Disposition;
use crate::context::Context;
use crate::outcome::Missed;
use crate::recording::Recording;
use crate::siginfo::SignalInfo;
use crate::slot::Slot;
use crate::tick::{Arrival, Tick};

/// Handles the sampling signal. Returns the program's disposition if the signal is not the agent's and the program's
/// handler must run. `info` and `context` are what the kernel passed, and all signals are blocked. `noted` is the slot
/// that the thread has noted. Without `has_room` on the stack no sample is taken.
#[inline(always)]
fn on_signal(
    signal: c_int,
    info: &mut SignalInfo,
    context: Context<'_>,
    noted: Option<&'static Slot>,
    has_room: bool,
) -> Option<&'static Disposition> {
    let entered = clock::now();
    let recording = recording::current();
    match recording.and_then(|recording| Some((recording, Arrival::read(info, recording, noted)?))) {
        Some((recording, arrival)) if has_room => serve_tick(recording, arrival, noted, context, entered),
        Some((recording, arrival)) => arrival.skip(recording, Skip::NoRoom),
        None if has_room && request::serve(recording, info, context, entered) => {}
        None => return chain::forward(signal, info, context),
    }
    interrupted_wait::end_if_due(context);
    None
}

/// Takes the sample of one tick: records the interrupted stack, and counts the tick under its outcome.
#[inline]
fn serve_tick(
    recording: &Recording,
    arrival: Arrival,
    noted: Option<&'static Slot>,
    context: Context<'_>,
    entered: u64,
) {
    let mut tick = Tick::new(arrival);
    let control = recording.region.control();
    let begun = tick.begin(recording, noted, context);
    control.fire(tick.weight.into());
    let outcome = begun.and_then(|(slot, _entered)| {
        shared_stack::keep_apart(slot, context);
        tick.admit(recording, slot)?;
        let head =
            StackHead { weight: tick.weight, end: 0, source: tick.clock().number(), nonce: tick.nonce() };
        let recorded = capture::record(recording, slot, context, head, entered);
        if let Some(request) = &tick.request {
            kernel_answer::follow(recording, slot, context, request, recorded.is_ok());
            frequent_switches::avoid(recording, slot, tick.cpu_ns, tick.weight);
        }
        recorded
    });
    outcome::count(control, &outcome, tick.weight);
    let spent = clock::now().wrapping_sub(entered);
    control.handler_time(spent);
    if recording.rate_limit.is_set() && !matches!(outcome, Err(Missed::Skipped(_))) {
        recording.rate_limit.spend(spent, tick.cpu_ns);
    }
}
