//! Answers requests from another process for the stack of this thread.
//!
//! The signal of a request has the same number as ticks, and standard signals merge: a delivered tick may stand for a
//! request as well, and a request may have been answered by a tick already. So every run of the handler checks whether
//! its thread is asked, and a signal is recognised as a request by its nonce, not by whether anybody still waits. Such
//! a signal must never reach the program, whose default action may be to die.
//!
//! What the requester writes is untrusted: a false request costs a walk.

use shm_format::{Nonce, StackHead, Trigger};

use crate::context::Context;
use crate::discovery;
use crate::outcome;
use crate::owner::own_slot;
use crate::recording::{self, Clock, Recording};
use crate::sample::Sample;
use crate::siginfo::SignalInfo;
use crate::slot::{self, Slot};
use crate::tick::Tick;

/// Signal origin, of a signal that is no tick.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// A request: it carries a nonce of this region.
    Request,
    /// Unknown: the kernel had no memory for its value (RLIMIT_SIGPENDING) and delivers it without.
    Unknown,
    /// The program, or another process.
    Program,
}

/// Handles a signal that is no tick: answers all requests to this thread. Returns false if the signal must be passed to
/// the program.
#[cold]
#[inline(never)]
pub(crate) fn serve(
    recording: Option<&Recording>,
    info: &SignalInfo,
    context: Context<'_>,
    entered: u64,
) -> bool {
    let Some(recording) = recording else { return false };
    let origin = origin(info, recording);
    let trigger = if origin == Origin::Program { Trigger::Foreign } else { Trigger::Request };
    let answered =
        recording.region.has_requests() && walk_and_answer(recording, context, entered, trigger) != 0;
    match origin {
        Origin::Program => false,
        Origin::Request => {
            if !answered {
                recording.region.count_late_request();
            }
            take_owed();
            true
        }
        // The sender is unknown: it is a request if this thread is or was asked.
        Origin::Unknown => answered || take_owed(),
    }
}

/// Whether the thread has answered a request whose signal has not arrived; counts it as arrived.
fn take_owed() -> bool {
    slot::noted().is_some_and(Slot::take_owed)
}

/// Whether the signal described by `info`, which was not handled, was that of a request.
pub fn is_request(info: &SignalInfo, recording: &Recording) -> bool {
    origin(info, recording) == Origin::Request
}

fn origin(info: &SignalInfo, recording: &Recording) -> Origin {
    match info.queued() {
        Some(value) if recording.region.was_requested(Nonce(value)) => Origin::Request,
        _ if info.is_nobodys() => Origin::Unknown,
        _ => Origin::Program,
    }
}

/// Walks the interrupted stack for the requests to this thread. Returns how many it answered.
fn walk_and_answer(recording: &Recording, context: Context<'_>, entered: u64, trigger: Trigger) -> u32 {
    if recording::is_stopped() {
        return 0;
    }
    let Ok(slot) = own_slot(context.stack_pointer()) else { return 0 };
    let Some(_entered) = slot.nesting.enter() else { return 0 };
    if !recording.is_current() || !slot.prepare() {
        return 0;
    }
    let sample = Sample::walk(recording, slot, context);
    let answered = sample.answer(entered, trigger);
    if answered != 0 {
        begin(recording, slot, &sample);
    }
    answered
}

/// Starts sampling the calling thread if it is not registered. This stack is its first sample.
fn begin(recording: &Recording, slot: &Slot, sample: &Sample<'_>) {
    let weight = discovery::start(recording, slot);
    if weight == 0 {
        return;
    }
    let control = recording.region.control();
    control.fire(weight.into());
    let (source, nonce) = (Clock::ThreadTimer.number(), Tick::NO_NONCE);
    let recorded = sample.record(StackHead { weight, end: 0, source, nonce });
    outcome::count(control, &recorded, weight);
}
