//! The stack of an event of the kernel that the thread has left behind before it ran the handler.
//!
//! The C library blocks all signals around `clone`, and the kernel delivers none before the end of `rt_sigreturn`: when the
//! handler runs, the function that the event happened in has returned. What it left on the stack is still there, below the stack
//! pointer, unless other calls have overwritten it. So a second walk starts where the event happened. It counts only if it arrives
//! at a frame of the first walk, as part of the same activation, and if each caller below that calls what it is said to have
//! called.

use shm_format::{StackHead, event_nonce};
use unwind::{FoundBy, Frame, Memory, calls_function_of};

use crate::activity::is_filtered;
use crate::arch;
use crate::context::Context;
use crate::kernel_ring::{EventPlace, Request};
use crate::recording::{Clock, Recording};
use crate::sample::Sample;
use crate::slot::Slot;
use crate::snapshot::Pinned;
use crate::stack::{Bounds, Stack};
use crate::unwinding::Unwind;

/// Maximum number of walks for one request.
const WALKS: usize = 4;
/// Innermost frames of the answer among which the function has to be that the event's function was called from.
const INNERMOST: usize = 8;
/// Two instructions of one function are closer together.
const FUNCTION: u64 = 1 << 13;
/// Size of the longest instruction in bytes: no more lies between a breakpoint and the place where the thread answers it.
const LONGEST_INSTRUCTION: u64 = 15;

/// Records the stacks of those events of `request` that happened in functions that have returned. The last walk of the thread was
/// that of the answer, which is recorded; the caller is inside the slot's nesting guard.
#[inline(never)]
pub(crate) fn record(recording: &Recording, slot: &Slot, context: Context<'_>, request: &Request) {
    if recording.unwind != Unwind::Own || is_filtered() {
        return;
    }
    let mut walks = 0;
    for (ring, head) in slot.kernel_rings.attached().zip(request.heads) {
        for place in ring.places(head).filter(|place| is_left_behind(place, request)) {
            let Some(known) = intact_stack(slot, context, place.sp) else { continue };
            if walks == WALKS {
                return;
            }
            if walks > 0 {
                // The walk to compare with is that of the answer.
                Sample::walk(recording, slot, context);
            }
            walks += 1;
            let answer = Innermost::of(stack_frames(slot));
            let pc = covered_pc(slot, place.ip, known);
            let registers = context.registers().moved_to(pc, place.sp);
            let sample = Sample::walk_from(recording, slot, context, &registers, [known, Bounds::NONE]);
            if is_trusted(slot, &answer, &sample, known) {
                let nonce = event_nonce(ring.id(), place.offset);
                // If it is lost, the event has no answer.
                let _ = sample.record(StackHead { weight: 0, end: 0, source: Clock::Perf.number(), nonce });
            }
        }
    }
}

/// Whether an event of `request` happened in a function that has returned, so not in this handler.
pub(crate) fn is_left_behind_by(slot: &Slot, context: Context<'_>, request: &Request) -> bool {
    slot.kernel_rings.attached().zip(request.heads).any(|(ring, head)| {
        let mut places = ring.places(head).filter(|place| is_left_behind(place, request));
        places.any(|place| intact_stack(slot, context, place.sp).is_some())
    })
}

/// Whether the event may have happened in a function that has returned since. All else is the reader's to match.
fn is_left_behind(place: &EventPlace, request: &Request) -> bool {
    let (ip, sp) = request.at;
    let has_stepped = !request.blocked && (1..=LONGEST_INSTRUCTION).contains(&ip.wrapping_sub(place.ip));
    place.sp != sp && !has_stepped
}

/// The part of the thread's stacks from `sp` on, if neither the kernel nor this handler has written to it since.
fn intact_stack(slot: &Slot, context: Context<'_>, sp: u64) -> Option<Bounds> {
    let here = arch::registers_here().sp();
    let stacks = [slot.stack(), context.alternate_stack()];
    let stack = stacks.into_iter().find(|stack| stack.hold(sp) && !stack.hold(here))?;
    Some(Bounds { low: stack.low.max(sp.saturating_sub(arch::RED_ZONE)), high: stack.high })
}

/// The program counter by which to look up the frame at `ip`. From the system call in `clone` on, the C library has no call frame
/// information, since the new thread returns there, too: for the old one, that of the instruction before holds.
fn covered_pc(slot: &Slot, ip: u64, known: Bounds) -> u64 {
    let call = ip.wrapping_sub(arch::CALL_BYTES);
    let Some(pinned) = Pinned::new(&slot.pin) else { return ip };
    let is_uncovered = |pc| pinned.modules().find(pc).is_some_and(|module| !module.covers(pc));
    let is_behind_call = || memory(slot, known).read(call).is_some_and(arch::is_call);
    if !is_uncovered(ip) || !is_behind_call() {
        return ip;
    }
    if is_uncovered(call) { call.wrapping_sub(1) } else { call }
}

/// What a walk may read of `slot`'s thread, whose stack `known` is.
fn memory(slot: &Slot, known: Bounds) -> Stack<'_> {
    // SAFETY: the caller is inside the nesting guard, so nothing else uses the pages.
    Stack::new([known, Bounds::NONE], known.low, true, unsafe { &mut *slot.probed_pages() })
}

fn stack_frames(slot: &Slot) -> &[Frame] {
    // SAFETY: the caller is inside the nesting guard, so nothing else uses the stack cache.
    unsafe { &*slot.stack_cache() }.frames()
}

/// What has to be known of the answer's stack once the other walk has replaced it.
struct Innermost {
    depth: usize,
    /// The addresses of the innermost frames, leaf first.
    addresses: [u64; INNERMOST],
}

impl Innermost {
    fn of(frames: &[Frame]) -> Self {
        let mut addresses = [0; INNERMOST];
        for (address, frame) in addresses.iter_mut().zip(frames) {
            *address = frame.address();
        }
        Self { depth: frames.len(), addresses }
    }
}

/// Whether the walk in the stack cache of `slot`, `sample`, has led from what is left of returned functions to the activation of
/// a function in the `answer`.
fn is_trusted(slot: &Slot, answer: &Innermost, sample: &Sample<'_>, known: Bounds) -> bool {
    let (frames, shared) = (stack_frames(slot), sample.shared());
    let (Some(new), Some(left)) = (frames.len().checked_sub(shared), answer.depth.checked_sub(shared)) else {
        return false;
    };
    let Some(mut returned) = frames.get(..new).filter(|_| shared > 0) else { return false };
    // The outermost of these was called from the same place as one of the answer's, and has the same return address on the
    // stack: it is the same activation if it is the same function.
    if let Some(last) = left.checked_sub(1) {
        let Some((activation, rest)) = returned.split_last() else { return false };
        let Some(in_answer) = answer.addresses.get(last) else { return false };
        if activation.address().abs_diff(*in_answer) >= FUNCTION {
            return false;
        }
        returned = rest;
    }
    let mut memory = memory(slot, known);
    let mut called = returned.iter();
    returned.iter().skip(1).all(|frame| {
        let callee = called.next().map_or(0, |callee| callee.address());
        frame.found_by() == FoundBy::Cfi
            && !frame.is_exact()
            && calls_function_of(frame.address(), callee, &mut memory)
    })
}
