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
//! - a thread that nobody announced, once: gettid, getpid, prctl (its name), tgkill with signal 0 (who is gone),
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
pub mod answer;
pub mod chain;
pub mod clock;
pub mod context;
mod delay;
pub mod entry;
pub mod governor;
pub mod kernel_ring;
pub mod nesting;
pub mod newcomers;
pub mod process;
pub mod request;
pub mod signal_stack;
pub mod slot;
pub mod stack;
pub mod sys;
pub mod thread_timer;
pub mod tick;

use core::ffi::{c_int, c_void};

use shm_format::{Loss, Occasion, Skip, StackHead};
use unwind::{End, Frame, Memo, Walk};

use crate::chain::Disposition;
use crate::context::Context;
use crate::nesting::Entered;
use crate::process::{Pinned, Recording};
use crate::slot::Slot;
use crate::stack::{Bounds, Stack};
use crate::tick::Tick;

/// What became of a tick that gave no record.
pub(crate) enum Missed {
    Lost(Loss),
    Skipped(Skip),
}

/// The handler of the sampling signal. A signal that is none of ours goes where the program wants it: the result.
///
/// # Safety
/// The arguments are the kernel's for an SA_SIGINFO handler, which runs with every signal blocked.
unsafe fn on_signal(
    signal: c_int,
    info: *mut libc::siginfo_t,
    raw: *mut c_void,
) -> Option<&'static Disposition> {
    let entered = clock::now();
    // SAFETY: the kernel passes a live `siginfo` and a live `ucontext`.
    let (ours, context) = unsafe { (Tick::read(info, process::recording()), Context::new(raw)) };
    let has_room = signal_stack::has_room(context, slot::noted().map_or(Bounds::NONE, Slot::stack));
    match ours {
        // SAFETY: the kernel's `siginfo`.
        None if has_room && unsafe { request::serve(info, context, entered) } => None,
        // SAFETY: the arguments are those of this very handler.
        None => unsafe { chain::forward(signal, info, raw) },
        Some((recording, tick)) if !has_room => {
            recording.region.control().fire(tick.weight.into());
            recording.region.control().skip(Skip::NoRoom, tick.weight.into());
            None
        }
        Some((recording, tick)) => {
            serve_tick(recording, tick, context, entered);
            // SAFETY: the kernel's `ucontext`, which nobody uses any more.
            unsafe { lend_stack(raw) };
            None
        }
    }
}

/// Samples, and counts what became of it.
#[inline(never)]
fn serve_tick(recording: &'static Recording, mut tick: Tick, context: Context<'_>, entered: u64) {
    let control = recording.region.control();
    let begun = begin(recording, &mut tick, context);
    let fired = tick.weight;
    control.fire(fired.into());
    let outcome = begun.and_then(|(slot, _entered)| sample(recording, slot, &mut tick, context, entered));
    match &outcome {
        Ok(()) => control.record(tick.weight.into()),
        Err(Missed::Lost(cause)) => control.lose(*cause, tick.weight.into()),
        Err(Missed::Skipped(cause)) => control.skip(*cause, tick.weight.into()),
    }
    let spent = clock::now().wrapping_sub(entered);
    control.handler_time(spent);
    if !matches!(outcome, Err(Missed::Skipped(_))) {
        recording.governor.spend(spent, tick.cpu_ns);
    }
}

/// Gives the thread a signal stack of ours, if it has none: its next signal needs no room on its own.
///
/// # Safety
/// `raw` is the third argument of the running handler.
unsafe fn lend_stack(raw: *mut c_void) {
    // SAFETY: the caller's promise.
    let has_none = unsafe { Context::new(raw) }.alternate_stack() == Bounds::NONE;
    if has_none
        && let Some(slot) = slot::noted()
        && slot.signal_stack.bounds() != Bounds::NONE
        && !process::is_filtered()
        // The storage by which it was found may be another thread's.
        && slot.tid() == sys::thread_id()
    {
        // SAFETY: the caller's promise.
        unsafe { signal_stack::lend(&slot.signal_stack, raw) };
    }
}

/// Finds out whose tick it is, and then what it stands for. A signal can outlive its thread: nothing of a slot is read
/// before it is known to be the caller's.
fn begin(
    recording: &Recording,
    tick: &mut Tick,
    context: Context<'_>,
) -> Result<(&'static Slot, Entered<'static>), Missed> {
    if recording.is_over() {
        tick.silence(context);
        return Err(Missed::Skipped(Skip::Stopped));
    }
    let slot = tick.slot(context)?;
    let entered = slot.nesting.enter().ok_or(Missed::Skipped(Skip::Nested))?;
    if !is_current(recording) {
        return Err(Missed::Skipped(Skip::Stopped));
    }
    if !slot.prepare() {
        return Err(Missed::Lost(Loss::NoSlot));
    }
    tick.ask(slot);
    if let Some(request) = &tick.request {
        answer::refuse_known(recording, slot, request, context)?;
    }
    match tick.weigh(recording, slot, context) {
        true => Ok((slot, entered)),
        false => Err(Missed::Skipped(Skip::Answered)),
    }
}

/// Walks the interrupted stack and writes its record. The caller is inside the slot's nesting guard.
fn sample(
    recording: &Recording,
    slot: &Slot,
    tick: &mut Tick,
    context: Context<'_>,
    entered: u64,
) -> Result<(), Missed> {
    if !recording.governor.admits(tick.weight) && !recording.region.asks(slot.tid()) {
        return Err(tick.put_off(slot));
    }
    tick.take_over(recording, slot);
    // SAFETY: the caller's guard makes this the only use of the memo.
    let memo = unsafe { &mut *slot.memo() };
    let walk = walk(recording, slot, context, memo);
    let head = StackHead {
        weight: tick.weight,
        end: walk.end as u8,
        source: tick.source().number(),
        nonce: tick.nonce(),
    };
    let frames = words(memo.frames());
    if recording.region.has_requests() {
        request::answer(recording, slot, &walk, frames, entered, Occasion::Tick);
    }
    let recorded = record(recording, slot, head, frames);
    if let Some(request) = &tick.request {
        answer::follow(recording, slot, request, context, recorded.is_ok());
    }
    recorded?;
    if !walk.end.is_complete() {
        recording.region.control().truncate();
    }
    Ok(())
}

/// True unless another recording took the place of this one after the signal came: then the slot is that one's.
fn is_current(recording: &Recording) -> bool {
    process::recording().is_some_and(|current| core::ptr::eq(current, recording))
}

/// Walks the interrupted stack; its frames are the memo's. The chain of records is told what it may leave out.
fn walk(recording: &Recording, slot: &Slot, context: Context<'_>, memo: &mut Memo) -> Walk {
    let walk = walk_untold(recording, slot, context, memo);
    // SAFETY: the memo is the caller's by the slot's nesting guard, and so is the chain.
    unsafe { &mut *slot.chain() }.walked(walk.unchanged);
    walk
}

fn walk_untold(recording: &Recording, slot: &Slot, context: Context<'_>, memo: &mut Memo) -> Walk {
    let mut memory = Stack::new(known_bounds(slot, context), !process::is_filtered());
    let Some(pinned) = Pinned::new(slot) else {
        memo.forget();
        return Walk::fresh(0, End::NoModule);
    };
    let (modules, registers) = (pinned.modules(), &context.registers());
    let walk = unwind::walk(modules, recording.cache, registers, &mut memory, memo, recording.max_frames);
    // Guesses may lead out of code that no module holds.
    if walk.end == End::NoModule || modules.find(registers.pc).is_none() {
        process::note_unknown_code();
    }
    walk
}

/// The memory that is certainly mapped: what lies above the interrupted stack pointer on the thread's own stack
/// or on its alternate one.
fn known_bounds(slot: &Slot, context: Context<'_>) -> [Bounds; 2] {
    // Compiled code may use this much below the stack pointer (System V ABI, the red zone).
    const RED_ZONE: u64 = 128;
    let sp = context.stack_pointer();
    let above = |bounds: Bounds| match bounds.hold(sp) {
        true => Bounds { low: bounds.low.max(sp.saturating_sub(RED_ZONE)), high: bounds.high },
        false => Bounds::NONE,
    };
    [above(slot.stack()), above(context.alternate_stack())]
}

/// Frames as they stand in records.
fn words(frames: &[Frame]) -> &[u64] {
    // SAFETY: a `Frame` is one transparent word.
    unsafe { core::slice::from_raw_parts(frames.as_ptr().cast::<u64>(), frames.len()) }
}

/// Writes one stack record, and wakes the reader if it is time to.
fn record(recording: &Recording, slot: &Slot, head: StackHead, frames: &[u64]) -> Result<(), Missed> {
    // SAFETY: the caller is inside the slot's nesting guard, which makes this the only use of the chain.
    let chain = unsafe { &mut *slot.chain() };
    let committed = chain.write(&slot.cursor, &recording.region, head, frames, clock::now);
    if committed.map_or_else(|cause| cause == Loss::PoolFull, |committed| committed.wake) {
        recording.ring();
    }
    committed.map(drop).map_err(Missed::Lost)
}
