//! The outcome of a tick. Every tick is counted exactly once, under one cause, so that recorded, lost and skipped
//! weights add up to the weight fired.

use shm_format::{Control, Loss, Skip};

/// `Ok` if a record was written, else the reason why not.
pub(crate) type Outcome = Result<(), Missed>;

/// Why a tick made no record.
pub(crate) enum Missed {
    Lost(Loss),
    Skipped(Skip),
}

/// Counts a tick that stands for `weight` periods or events.
#[inline]
pub(crate) fn count(control: &Control, outcome: &Outcome, weight: u32) {
    match outcome {
        Ok(()) => control.record(weight.into()),
        Err(missed) => count_missed(control, missed, weight),
    }
}

#[cold]
#[inline(never)]
fn count_missed(control: &Control, missed: &Missed, weight: u32) {
    match missed {
        Missed::Lost(cause) => control.lose(*cause, weight.into()),
        Missed::Skipped(cause) => control.skip(*cause, weight.into()),
    }
}
