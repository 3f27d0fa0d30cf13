//! Everything that runs inside the sampling signal handler.
//!
//! Whatever the interrupted thread was doing, it may be in the middle of it: holding the allocator's or the
//! loader's lock, with a stack of two kibibytes left, on a stack nobody knows. So nothing here allocates, locks,
//! waits, calls into a C library, touches `errno`, or can panic; nothing is initialised on first use; and a
//! system call is made only where its absence would be worse, never once the program has restricted its system calls:
//!
//! - any sample: rt_sigprocmask (a probe of memory that is not known to be mapped), futex (one wake of a sleeping reader);
//! - a thread's first: mmap, munlock, mprotect (its workspace); gettid where it has no note of its slot;
//! - with ITIMER_PROF, and to learn the rate of the clock: clock_gettime;
//! - an event of the kernel with time off the processor: openat, read, close (`delay`, which says why);
//! - a thread that nobody registered, once: gettid, getpid, prctl (its name), tgkill with signal 0 (who is gone),
//!   timer_create, timer_settime, timer_gettime, timer_delete, clock_gettime, munmap;
//! - the first tick after the end of a recording: timer_settime or setitimer, or munmap of the kernel's rings;
//! - a signal of the program's own: rt_sigprocmask, rt_tgsigqueueinfo, and, where it asks for its death, rt_sigaction and
//!   tgkill.
//!
//! The kernel runs the handler with all signals blocked, and on the thread's alternate stack: the program's, or one of
//! ours.
#![no_std]
#![warn(missing_docs)]
#![warn(clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_macros))]

pub mod activity;
mod arch;
pub mod call;
pub mod caller;
pub mod chain;
pub mod clock;
pub mod context;
mod copy;
pub mod decimal;
mod delay;
mod discovery;
pub mod entry;
pub mod generated;
pub mod interpreter;
mod kept_stacks;
pub mod kernel_answer;
pub mod kernel_ring;
pub mod late_start;
mod manner;
pub mod nesting;
mod ordinary_walk;
mod outcome;
mod owner;
mod probed_pages;
pub mod process_time;
pub mod rate_limit;
pub mod recording;
mod recurring;
pub mod remainder;
pub mod request;
mod sample;
pub mod siginfo;
pub mod signal_stack;
pub mod slot;
pub mod snapshot;
pub mod stack;
pub mod sys;
pub mod thread_timer;
pub mod tick;
pub mod tracepoint;
pub mod unwinding;

use core::ffi::c_int;

use shm_format::{Skip, StackHead};

use crate::chain::Disposition;
use crate::context::Context;
use crate::outcome::Missed;
use crate::recording::Recording;
use crate::siginfo::SignalInfo;
use crate::tick::{Arrival, Tick};

/// The handler of the sampling signal. A signal that is none of ours goes where the program wants it: the result.
/// `info` and `context` are what the kernel passed; every signal is blocked. Without room on the stack nothing is sampled.
fn on_signal(
    signal: c_int,
    info: &mut SignalInfo,
    context: Context<'_>,
    has_room: bool,
) -> Option<&'static Disposition> {
    let entered = clock::now();
    let recording = recording::current();
    match recording.and_then(|recording| Some((recording, Arrival::read(info, recording)?))) {
        Some((recording, arrival)) if has_room => serve_tick(recording, arrival, context, entered),
        Some((recording, arrival)) => arrival.skip(recording, Skip::NoRoom),
        None if has_room && request::serve(recording, info, context, entered) => {}
        None => return chain::forward(signal, info, context),
    }
    None
}

/// Walks the interrupted stack, writes its record, and counts what became of the tick.
#[inline(never)]
fn serve_tick(recording: &Recording, arrival: Arrival, context: Context<'_>, entered: u64) {
    let mut tick = Tick::new(arrival);
    let control = recording.region.control();
    let begun = tick.begin(recording, context);
    control.fire(tick.weight.into());
    let outcome = begun.and_then(|(slot, _entered)| {
        tick.admit(recording, slot)?;
        let head =
            StackHead { weight: tick.weight, end: 0, source: tick.clock().number(), nonce: tick.nonce() };
        let recorded = manner::record(recording, slot, context, head, entered);
        if let Some(request) = &tick.request {
            kernel_answer::follow(recording, slot, request, recorded.is_ok());
        }
        recorded
    });
    outcome::count(control, &outcome, tick.weight);
    let spent = clock::now().wrapping_sub(entered);
    control.handler_time(spent);
    if !matches!(outcome, Err(Missed::Skipped(_))) {
        recording.rate_limit.spend(spent, tick.cpu_ns);
    }
}
