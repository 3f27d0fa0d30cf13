//! Requests: another process wants the stack of this thread, now.
//!
//! The signal that brings a request is of the same number as our ticks, and standard signals merge: what the kernel
//! delivers may be a tick that stands for a request too, or a request whose stack a tick has given already. So every
//! run of the handler looks whether its thread is asked, and a signal is known as a request by its nonce, not by
//! whether somebody still waits. Such a signal never reaches the program, whose default action may be to die.
//!
//! What the requester writes is believed in nothing: a lie costs a walk.

use shm_format::{Nonce, Occasion, StackHead};

use crate::context::Context;
use crate::discovery;
use crate::outcome;
use crate::owner::own_slot;
use crate::recording::{self, Clock, Recording};
use crate::sample::Sample;
use crate::siginfo::{Sender, SignalInfo};
use crate::slot::{self, Slot};
use crate::tick::Tick;

/// What brought a signal that is no tick.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// A request: it carries a nonce of ours.
    Request,
    /// The kernel had no room for what it carried (RLIMIT_SIGPENDING) and delivers it bare.
    Unknown,
    /// The program, or somebody who means the program.
    Program,
}

/// Serves a signal that is no tick of ours: gives the stack to whoever asks this thread for it. False if the program
/// must be given the signal.
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
    let occasion = if origin == Origin::Program { Occasion::Foreign } else { Occasion::Request };
    let answered =
        recording.region.has_requests() && walk_and_answer(recording, context, entered, occasion) != 0;
    match origin {
        Origin::Program => false,
        Origin::Request => {
            if !answered {
                recording.region.count_late_request();
            }
            take_owed();
            true
        }
        // Sent by nobody, for all that can be seen: a request, if this thread is asked or was.
        Origin::Unknown => answered || take_owed(),
    }
}

/// True if the thread has answered a request whose signal it has not seen; that is settled now.
fn take_owed() -> bool {
    slot::noted().is_some_and(Slot::take_owed)
}

/// True if a request brought the signal that `info` describes, which nobody handled.
pub fn is_request(info: &SignalInfo, recording: &Recording) -> bool {
    origin(info, recording) == Origin::Request
}

fn origin(info: &SignalInfo, recording: &Recording) -> Origin {
    match info.sender() {
        Sender::Queue { value } if recording.region.was_requested(Nonce(value)) => Origin::Request,
        Sender::Nobody => Origin::Unknown,
        _ => Origin::Program,
    }
}

/// Walks the interrupted stack for the requests of this thread; how many it answered.
fn walk_and_answer(recording: &Recording, context: Context<'_>, entered: u64, occasion: Occasion) -> u32 {
    if recording::is_stopped() {
        return 0;
    }
    let Ok(slot) = own_slot(context.stack_pointer()) else { return 0 };
    let Some(_entered) = slot.nesting.enter() else { return 0 };
    if !recording.is_current() || !slot.prepare() {
        return 0;
    }
    let sample = Sample::walk(recording, slot, context);
    let answered = sample.answer(entered, occasion);
    if answered != 0 {
        begin(recording, slot, &sample);
    }
    answered
}

/// Starts sampling the calling thread if nobody has registered it; its first sample is this stack.
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
