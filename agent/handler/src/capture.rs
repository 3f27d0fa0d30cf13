//! What a sample records of the stack: frames walked by the thread itself, a copy of the stack, or both.

use shm_format::{StackHead, Trigger};

use crate::context::Context;
use crate::copy::{self, Extent};
use crate::outcome::Outcome;
use crate::recording::Recording;
use crate::sample::Sample;
use crate::slot::Slot;
use crate::unwinding::Unwind;

/// Records the interrupted stack as the recording is set up, and answers all requests for the thread's stack. The
/// handler began at `entered`; the caller is inside the slot's nesting guard.
#[inline]
pub(crate) fn record(
    recording: &Recording,
    slot: &Slot,
    context: Context<'_>,
    head: StackHead,
    entered: u64,
) -> Outcome {
    let is_asked = recording.region.has_requests();
    let mut recorded = Ok(());
    if recording.unwind == Unwind::Guess {
        recorded = Sample::guess(recording, slot, context).record(head);
    }
    let records_walk = matches!(recording.unwind, Unwind::Own | Unwind::Both);
    if is_asked || records_walk {
        let sample = Sample::walk(recording, slot, context);
        if is_asked {
            sample.answer(entered, Trigger::Tick);
        }
        if recording.unwind == Unwind::Both {
            // The copy comes first: when the reader sees the stack record, everything that belongs to it is there. Without a copy
            // there is nothing to compare with, so a failure is ignored.
            let _ = copy::record(recording, slot, context, &head, Some(Extent::of_walk(slot)));
        }
        if records_walk {
            return sample.record(head);
        }
    }
    if recording.unwind.copies() {
        recorded = copy::record(recording, slot, context, &head, None);
    }
    recorded
}
