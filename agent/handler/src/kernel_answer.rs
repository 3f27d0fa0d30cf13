//! Copies the kernel's records from the perf rings into the pool, after the stack that answers them.

use platform::bounds::Bounds;
use platform::clock;
use shm_format::{KernelAnswerHead, RecordKind, Skip};

use crate::context::Context;
use crate::delay;
use crate::event_stack;
use crate::kernel_ring::{KernelRing, KernelRings, Request};
use crate::outcome::Missed;
use crate::recording::Recording;
use crate::slot::Slot;

/// Words of a ring in one record; several such records fit into a chunk.
const PIECE: u64 = 512;

/// Refuses a request that has been answered already.
#[inline(never)]
pub(crate) fn refuse_known(recording: &Recording, slot: &Slot, request: &Request) -> Result<(), Missed> {
    let repeated = request.repeats(&slot.kernel_rings).filter(|_| !request.is_empty());
    // In a loop, the thread comes to the same place again.
    if let Some(nonce) = repeated.filter(|_| !event_stack::is_left_behind_by(slot, request)) {
        // The events were caused by the handler itself, and another stack would cause more.
        let head = KernelAnswerHead { nonce, ..head(request, KernelAnswerHead::REPEATED) };
        write(recording, slot, request, head);
        // They count as samples, so the next one must not account for their time, too.
        slot.kernel_rings.count(request.events, slot.kernel_rings.period_ns());
    } else if !request.is_empty() {
        return Ok(());
    }
    Err(Missed::Skipped(Skip::Answered))
}

/// Copies the kernel's records, if there is a stack that answers them: the thread's last walk. Stacks of events that this one does
/// not answer come first.
#[inline(never)]
pub(crate) fn follow(
    recording: &Recording,
    slot: &Slot,
    context: Context<'_>,
    request: &Request,
    has_stack: bool,
) {
    if !has_stack {
        return discard(&slot.kernel_rings, request);
    }
    event_stack::record(recording, slot, context, request);
    slot.kernel_rings.note_answer(request.nonce, request.at);
    let delay = if recording.tells_delay { delay::of_this_thread() } else { None };
    let flags = if delay.is_some() { KernelAnswerHead::DELAY } else { 0 };
    let head = KernelAnswerHead { delay_ns: delay.unwrap_or(0), ..head(request, flags) };
    write(recording, slot, request, head);
}

/// Writes the answer to `request` and consumes what it answers. If the pool has no space for a piece, that piece is
/// missing in the ring's stream, which the reader notices.
fn write(recording: &Recording, slot: &Slot, request: &Request, head: KernelAnswerHead) {
    for (ring, head_in) in slot.kernel_rings.attached().zip(request.heads) {
        let mut at = ring.tail();
        let mut flags = head.flags | KernelAnswerHead::FIRST;
        while at < head_in {
            let end = head_in.min(at.saturating_add(PIECE * 8));
            flags |= if end == head_in { KernelAnswerHead::LAST } else { 0 };
            let piece = KernelAnswerHead {
                ring: ring.id(),
                offset: at,
                head_in,
                head_out: ring.head(),
                flags,
                ..head
            };
            copy(recording, slot, ring, &piece, end);
            flags = head.flags;
            at = end;
        }
        ring.consume(head_in, ring.head());
    }
}

/// The fixed part of the answer to `request`.
fn head(request: &Request, flags: u32) -> KernelAnswerHead {
    let blocked = if request.blocked { KernelAnswerHead::BLOCKED } else { 0 };
    let (ip, sp) = request.at;
    KernelAnswerHead { nonce: request.nonce, flags: flags | blocked, ip, sp, ..KernelAnswerHead::default() }
}

/// Copies the stream from `piece.offset` to `end` into one record.
fn copy(recording: &Recording, slot: &Slot, ring: &KernelRing, piece: &KernelAnswerHead, end: u64) {
    let words = KernelAnswerHead::WORDS + (end.saturating_sub(piece.offset) / 8) as usize;
    let Ok(mut record) = slot.cursor.reserve(&recording.region, RecordKind::Answer, words, clock::now) else {
        return;
    };
    record.copy_from(0, &piece.words());
    let first = ring.words(piece.offset, end);
    record.copy_from(KernelAnswerHead::WORDS, first);
    // The part after the wrap-around of the buffer.
    let rest = ring.words(piece.offset.wrapping_add(first.len() as u64 * 8), end);
    record.copy_from(KernelAnswerHead::WORDS + first.len(), rest);
    if record.commit().wake {
        recording.ring();
    }
}

/// Consumes what `request` asks for without an answer; the caller counts it as lost or skipped.
pub(crate) fn discard(rings: &KernelRings, request: &Request) {
    for (ring, head) in rings.attached().zip(request.heads) {
        if ring.tail() < head {
            ring.consume(head, ring.head());
        }
    }
}

/// Writes what the rings of an ending thread still hold, as unanswered. Called by the thread itself, outside handlers,
/// with all signals blocked.
pub fn leave(recording: &Recording, slot: &Slot) {
    let request = slot.kernel_rings.request(false, (0, 0), Bounds::NONE);
    if !request.is_empty() {
        let head = KernelAnswerHead {
            nonce: request.nonce,
            flags: KernelAnswerHead::UNANSWERED,
            ..KernelAnswerHead::default()
        };
        write(recording, slot, &request, head);
    }
}
