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

pub mod chain;
pub mod clock;
pub mod context;
pub mod nesting;
pub mod process;
pub mod slot;
pub mod stack;
pub mod sys;
pub mod tick;

use core::ffi::{c_int, c_void};

use shm_format::{Loss, RecordKind, Skip, StackHead};
use unwind::{End, Frame, Walk};

use crate::context::Context;
use crate::process::{Pinned, Recording};
use crate::slot::Slot;
use crate::stack::{Bounds, Stack};
use crate::tick::Tick;

/// The nonce of a sample that nobody requested.
const NO_NONCE: u64 = 0;

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
    let Some((recording, tick)) = ours else {
        // SAFETY: the arguments are those of this very handler.
        return unsafe { chain::forward(signal, info, context) };
    };
    let control = recording.region.control();
    control.fire(tick.weight.into());
    // SAFETY: the kernel passes a live `ucontext`.
    let context = unsafe { Context::new(context) };
    match sample(recording, &tick, context) {
        Ok(()) => control.record(tick.weight.into()),
        Err(Missed::Lost(cause)) => control.lose(cause, tick.weight.into()),
        Err(Missed::Skipped(cause)) => control.skip(cause, tick.weight.into()),
    }
    control.handler_time(clock::now().wrapping_sub(entered));
}

/// Walks the interrupted stack and writes its record.
fn sample(recording: &Recording, tick: &Tick, context: Context<'_>) -> Result<(), Missed> {
    if recording.is_over() {
        tick.silence();
        return Err(Missed::Skipped(Skip::Stopped));
    }
    let slot = tick.slot(context)?;
    let _entered = slot.nesting.enter().ok_or(Missed::Skipped(Skip::Nested))?;
    // SAFETY: the guard makes this the only use of the buffer.
    let frames = unsafe { &mut *slot.frames() };
    let walk = walk(recording, slot, context, frames);
    let head = StackHead {
        weight: tick.weight,
        depth: walk.depth as u16,
        end: walk.end as u8,
        source: recording.source.number(),
        nonce: NO_NONCE,
    };
    record(recording, slot, head, frames.get(..walk.depth).unwrap_or(&[]))?;
    if !walk.end.is_complete() {
        recording.region.control().truncate();
    }
    Ok(())
}

/// Walks the interrupted stack into `frames`.
fn walk(recording: &Recording, slot: &Slot, context: Context<'_>, frames: &mut [Frame]) -> Walk {
    let mut memory = Stack::new(known_bounds(slot, context), !process::is_filtered());
    let Some(pinned) = Pinned::new(slot) else { return Walk { depth: 0, end: End::NoModule } };
    let limit = recording.max_frames.min(frames.len());
    let frames = frames.get_mut(..limit).unwrap_or(&mut []);
    let walk = unwind::walk(pinned.modules(), recording.cache, &context.registers(), &mut memory, frames);
    if walk.end == End::NoModule {
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

/// Writes one stack record, and wakes the reader if it is time to.
fn record(recording: &Recording, slot: &Slot, head: StackHead, frames: &[Frame]) -> Result<(), Missed> {
    let words = frames.len().saturating_add(StackHead::WORDS);
    let mut record =
        slot.cursor.reserve(&recording.region, RecordKind::Stack, words, clock::now).map_err(Missed::Lost)?;
    record.copy_from(0, &head.words());
    // SAFETY: a `Frame` is one transparent word.
    let frames = unsafe { core::slice::from_raw_parts(frames.as_ptr().cast::<u64>(), frames.len()) };
    record.copy_from(StackHead::WORDS, frames);
    if record.commit().wake {
        recording.ring();
    }
    Ok(())
}
