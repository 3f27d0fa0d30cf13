//! Requests: another process wants the stack of this thread, now.
//!
//! The signal that brings a request is of the same number as our ticks, and standard signals merge: what the kernel
//! delivers may be a tick that stands for a request too, or a request whose stack a tick has given already. So every
//! run of the handler looks whether its thread is asked, and a signal is known as a request by its nonce, not by
//! whether somebody still waits. Such a signal never reaches the program, whose default action may be to die.
//!
//! What the requester writes is believed in nothing: a lie costs a walk.

use shm_format::{AnswerHead, Nonce, Occasion, StackHead};
use unwind::Walk;

use crate::Missed;
use crate::clock;
use crate::context::Context;
use crate::process::{self, Recording, Source};
use crate::slot::{self, Slot};
use crate::tick::{self, Tick};

/// The head of the kernel's `siginfo`, as rt_tgsigqueueinfo(2) and kill(2) fill it.
#[repr(C)]
struct QueueInfo {
    signal: i32,
    errno: i32,
    code: i32,
    padding: i32,
    pid: i32,
    uid: u32,
    value: u64,
}

const SI_USER: i32 = 0;
const SI_QUEUE: i32 = -1;

/// What a signal that is no tick says of itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bearer {
    /// It carries a nonce of ours.
    Request,
    /// The kernel had no room for what it carried (RLIMIT_SIGPENDING) and delivers it bare.
    Bare,
    /// It is the program's.
    Foreign,
}

/// Serves a signal that is no tick of ours: gives the stack to whoever asks this thread for it. False if the program
/// must be given the signal.
///
/// # Safety
/// `info` is the second argument of a running SA_SIGINFO handler.
#[cold]
#[inline(never)]
pub(crate) unsafe fn serve(info: *const libc::siginfo_t, context: Context<'_>, entered: u64) -> bool {
    let Some(recording) = process::recording() else { return false };
    // SAFETY: the caller's promise.
    let bearer = unsafe { bearer(info, recording) };
    let occasion = if bearer == Bearer::Foreign { Occasion::Foreign } else { Occasion::Request };
    let answered =
        recording.region.has_requests() && walk_and_answer(recording, context, entered, occasion) != 0;
    match bearer {
        Bearer::Foreign => false,
        Bearer::Request => {
            if !answered {
                recording.region.count_late_request();
            }
            take_owed();
            true
        }
        // Sent by nobody, for all that can be seen: a request, if this thread is asked or was.
        Bearer::Bare => answered || take_owed(),
    }
}

/// True if the thread has answered a request whose signal it has not seen; that is settled now.
fn take_owed() -> bool {
    slot::noted().is_some_and(Slot::take_owed)
}

/// True if a request brought the signal that `info` describes, which nobody handled.
///
/// # Safety
/// `info` is a `siginfo` that the kernel has filled.
pub unsafe fn is_request(info: *const libc::siginfo_t, recording: &Recording) -> bool {
    // SAFETY: the caller's promise.
    unsafe { bearer(info, recording) == Bearer::Request }
}

/// # Safety
/// As for [`is_request`].
unsafe fn bearer(info: *const libc::siginfo_t, recording: &Recording) -> Bearer {
    // SAFETY: the kernel's `siginfo` has 128 bytes; which of them mean something depends on the code.
    let info = unsafe { &*info.cast::<QueueInfo>() };
    match info.code {
        SI_QUEUE if recording.region.was_requested(Nonce(info.value)) => Bearer::Request,
        SI_USER if info.pid == 0 && info.uid == 0 => Bearer::Bare,
        _ => Bearer::Foreign,
    }
}

/// Walks the interrupted stack for the requests of this thread; how many it answered.
fn walk_and_answer(recording: &Recording, context: Context<'_>, entered: u64, occasion: Occasion) -> u32 {
    if process::is_stopped() {
        return 0;
    }
    let Ok(slot) = tick::own_slot(context) else { return 0 };
    let Some(_entered) = slot.nesting.enter() else { return 0 };
    if !crate::is_current(recording) || !slot.prepare() {
        return 0;
    }
    // SAFETY: the guard makes this the only use of the memo.
    let memo = unsafe { &mut *slot.memo() };
    let walk = crate::walk(recording, slot, context, memo);
    let frames = crate::words(memo.frames());
    let answered = answer(recording, slot, &walk, frames, entered, occasion);
    if answered != 0 {
        begin(recording, slot, &walk, frames);
    }
    answered
}

/// Takes the calling thread in if nobody has announced it; its first sample is this stack.
fn begin(recording: &Recording, slot: &Slot, walk: &Walk, frames: &[u64]) {
    let weight = recording.newcomers.take_in(recording, slot);
    if weight == 0 {
        return;
    }
    let control = recording.region.control();
    control.fire(weight.into());
    let head = StackHead {
        weight,
        end: walk.end as u8,
        source: Source::ThreadTimer.number(),
        nonce: Tick::NO_NONCE,
    };
    match crate::record(recording, slot, head, frames) {
        Ok(()) => control.record(weight.into()),
        Err(Missed::Lost(cause)) => control.lose(cause, weight.into()),
        Err(Missed::Skipped(cause)) => control.skip(cause, weight.into()),
    }
    if !walk.end.is_complete() {
        control.truncate();
    }
}

/// Gives a stack to everyone who asks the thread of `slot` for it; how many that were.
#[cold]
pub(crate) fn answer(
    recording: &Recording,
    slot: &Slot,
    walk: &Walk,
    frames: &[u64],
    entered: u64,
    occasion: Occasion,
) -> u32 {
    let head = AnswerHead {
        tid: slot.tid(),
        thread_seq: slot.sequence(),
        depth: 0,
        end: walk.end as u8,
        occasion,
        entered,
        walked: clock::now(),
    };
    let answered = recording.region.answer(&head, frames);
    if answered != 0 && occasion != Occasion::Request {
        slot.set_owed();
    }
    answered
}
