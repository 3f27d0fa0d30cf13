//! Everything that runs inside the sampling signal handler.
//!
//! Whatever the interrupted thread was doing, it may be in the middle of it: holding the allocator's or the
//! loader's lock, with a stack of two kibibytes left, on a stack nobody knows. So nothing here allocates, locks,
//! waits, calls into a C library, touches `errno`, or can panic; nothing is initialised on first use; and a
//! system call is made only where its absence would be worse (a probe of unknown memory, one wake of a sleeping
//! reader), never once the program has restricted its system calls.
//!
//! The kernel runs the handler with all signals blocked, and on the alternate stack if the thread has one.
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
pub mod governor;
pub mod kernel_ring;
pub mod nesting;
pub mod newcomers;
pub mod process;
pub mod request;
pub mod slot;
pub mod stack;
pub mod sys;
pub mod thread_timer;
pub mod tick;

use core::ffi::{c_int, c_void};

use shm_format::{Loss, Occasion, Skip, StackHead};
use unwind::{End, Frame, Memo, Walk};

use crate::context::Context;
use crate::process::{Pinned, Recording};
use crate::slot::Slot;
use crate::stack::{Bounds, Stack};
use crate::tick::Tick;

/// What became of a tick that gave no record.
pub(crate) enum Missed {
    Lost(Loss),
    Skipped(Skip),
}

/// The handler of the sampling signal.
///
/// # Safety
/// For the kernel to call, as an SA_SIGINFO handler with every signal blocked.
pub unsafe extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let entered = clock::now();
    // SAFETY: the kernel passes a live `siginfo`.
    let ours = unsafe { Tick::read(info, process::recording()) };
    let Some((recording, mut tick)) = ours else {
        // SAFETY: the arguments are those of this very handler.
        return unsafe {
            if !request::serve(info, Context::new(context), entered) {
                chain::forward(signal, info, context);
            }
        };
    };
    let control = recording.region.control();
    let fired = tick.weight;
    control.fire(fired.into());
    // SAFETY: the kernel passes a live `ucontext`.
    let context = unsafe { Context::new(context) };
    let outcome = sample(recording, &mut tick, context, entered);
    match &outcome {
        Ok(()) => control.record(tick.weight.into()),
        Err(Missed::Lost(cause)) => control.lose(*cause, tick.weight.into()),
        Err(Missed::Skipped(cause)) => control.skip(*cause, tick.weight.into()),
    }
    if !recording.is_over() {
        recording.newcomers.tick(recording, fired);
    }
    let spent = clock::now().wrapping_sub(entered);
    control.handler_time(spent);
    if !matches!(outcome, Err(Missed::Skipped(_))) {
        recording.governor.spend(spent);
    }
}

/// Walks the interrupted stack and writes its record.
fn sample(recording: &Recording, tick: &mut Tick, context: Context<'_>, entered: u64) -> Result<(), Missed> {
    if recording.is_over() {
        tick.silence();
        return Err(Missed::Skipped(Skip::Stopped));
    }
    let slot = tick.slot(context)?;
    let _entered = slot.nesting.enter().ok_or(Missed::Skipped(Skip::Nested))?;
    if let Some(request) = &tick.request {
        answer::refuse_known(recording, slot, request, context)?;
    }
    if !recording.governor.admits(tick.weight) && !recording.region.has_requests() {
        return Err(tick.put_off(slot));
    }
    tick.take_over(slot);
    // SAFETY: the guard makes this the only use of the memo.
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
        process::set_stale();
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
    if committed.map_err(Missed::Lost)?.wake {
        recording.ring();
    }
    Ok(())
}
