//! The stack of an event of the kernel that the thread has left behind before it ran the handler.
//!
//! The C library blocks all signals around `clone`, and the kernel delivers none before the end of `rt_sigreturn`: when the
//! handler runs, the function that the event happened in has returned. What it left on the stack is still there, below the stack
//! pointer, unless other calls have overwritten it. So a second walk starts where the event happened. It counts only if it arrives
//! at a frame of the first walk, by way of an activation that the first walk has, too, and if each caller below that calls what it
//! is said to have called.

use platform::activity::is_filtered;
use platform::bounds::Bounds;
use shm_format::{StackHead, event_nonce};
use unwind::{FoundBy, Frame, Memory, called_before};

use crate::arch;
use crate::context::Context;
use crate::kernel_ring::{EventPlace, Request};
use crate::recording::{Clock, Recording};
use crate::sample::{Elsewhere, Sample};
use crate::slot::Slot;
use crate::snapshot::Pinned;
use crate::stack::Stack;
use crate::unwinding::Unwind;

/// Maximum number of walks for one request.
const WALKS: usize = 4;
/// Innermost frames of the answer among which the function has to be that the event's function was called from.
const INNERMOST: usize = 8;
/// Bytes between two calls of a function that blocks all signals: posix_spawn unmaps a stack after `clone`.
const CALLS_APART: u64 = 512;
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
            let Some(known) = intact_stack(slot, request, place.sp) else { continue };
            if walks == WALKS {
                return;
            }
            if walks > 0 {
                // The walk to compare with is that of the answer.
                Sample::walk(recording, slot, context);
            }
            walks += 1;
            let answer = Innermost::of(stack_frames(slot));
            let start = Elsewhere { pc: covered_pc(slot, place.ip, known), sp: place.sp, known };
            let sample = Sample::walk_from(recording, slot, context, Some(&start));
            if is_trusted(slot, &answer, &sample, known) {
                let nonce = event_nonce(ring.id(), place.offset);
                // If it is lost, the event has no answer.
                let _ = sample.record(StackHead { weight: 0, end: 0, source: Clock::Perf.number(), nonce });
            }
        }
    }
}

/// Whether an event of `request` happened in a function that has returned, so not in this handler.
pub(crate) fn is_left_behind_by(slot: &Slot, request: &Request) -> bool {
    slot.kernel_rings.attached().zip(request.heads).any(|(ring, head)| {
        let mut places = ring.places(head).filter(|place| is_left_behind(place, request));
        places.any(|place| intact_stack(slot, request, place.sp).is_some())
    })
}

/// Whether the event may have happened in a function that has returned since. All else is the reader's to match.
fn is_left_behind(place: &EventPlace, request: &Request) -> bool {
    let (ip, sp) = request.at;
    let has_stepped = !request.blocked && (1..=LONGEST_INSTRUCTION).contains(&ip.wrapping_sub(place.ip));
    let is_there = place.sp == sp && (place.ip == ip || place.ip == ip.wrapping_add(arch::CALL_BYTES));
    !is_there && !has_stepped
}

/// The part of the thread's stacks from `sp` on, if neither the kernel nor this handler has written to it since.
fn intact_stack(slot: &Slot, request: &Request, sp: u64) -> Option<Bounds> {
    let (here, (_, interrupted)) = (arch::registers_here().sp(), request.at);
    let is_intact = |stack: &Bounds| !stack.hold(here) || (stack.hold(interrupted) && sp >= interrupted);
    let stacks = [slot.stack(), request.alternate_stack];
    let stack = stacks.into_iter().find(|stack| stack.hold(sp) && is_intact(stack))?;
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
    Stack::new(known, known.low, true, unsafe { &mut *slot.probed_pages() })
}

fn stack_frames(slot: &Slot) -> &[Frame] {
    // SAFETY: the caller is inside the nesting guard, so nothing else uses the stack cache.
    unsafe { &*slot.stack_cache() }.frames()
}

/// What has to be known of the answer's stack once the other walk has replaced it.
struct Innermost {
    depth: usize,
    /// The innermost frames, leaf first.
    frames: [Frame; INNERMOST],
}

impl Innermost {
    fn of(frames: &[Frame]) -> Self {
        let mut innermost = [Frame::from_bits(0); INNERMOST];
        for (to, frame) in innermost.iter_mut().zip(frames) {
            *to = *frame;
        }
        Self { depth: frames.len(), frames: innermost }
    }
}

/// Whether the walk in the stack cache of `slot`, `sample`, has led from what is left of returned functions to the activation of
/// a function in the `answer`.
fn is_trusted(slot: &Slot, answer: &Innermost, sample: &Sample<'_>, known: Bounds) -> bool {
    let (frames, shared) = (stack_frames(slot), sample.shared());
    let (Some(new), Some(left)) = (frames.len().checked_sub(shared), answer.depth.checked_sub(shared)) else {
        return false;
    };
    let Some(returned) = frames.get(..new).filter(|_| shared > 0) else { return false };
    let Some(pinned) = Pinned::new(&slot.pin) else { return false };
    let function = |frame: &Frame| {
        let address = frame.lookup_address();
        let fde = pinned.modules().find(address)?.fde_at(address);
        Some(fde.ok()??.start)
    };
    let mut memory = memory(slot, known);
    let called_by_last = returned.iter().nth_back(1).filter(|_| left > 0);
    if let Some(last) = left.checked_sub(1) {
        // Both were called from the same place, and have the same return address on the stack: it is the same activation if it is
        // the same function.
        let (Some(activation), Some(in_answer)) = (returned.last(), answer.frames.get(last)) else {
            return false;
        };
        if function(activation).is_none() || function(activation) != function(in_answer) {
            return false;
        }
    }
    returned.windows(2).all(|pair| {
        let [callee, caller] = pair else { return false };
        if caller.found_by() != FoundBy::Cfi || caller.is_exact() {
            return false;
        }
        let Some((start, target)) = function(caller).zip(function(callee)) else { return false };
        let address = caller.address();
        // That activation may have called something else since, whose return address is in the place of the first one.
        let is_again = called_by_last.is_some_and(|called| core::ptr::eq(called, callee));
        let earliest = if is_again { start.max(address.saturating_sub(CALLS_APART)) } else { address };
        (earliest..=address).rev().any(|at| called_before(at, &mut memory) == Some(target))
    })
}
