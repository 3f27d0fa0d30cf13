//! What became of a tick: it is counted once, under one cause, so that the counts add up.

use shm_format::{Control, Loss, Skip};

/// A record, or why there is none.
pub(crate) type Outcome = Result<(), Missed>;

/// Why a tick gave no record.
pub(crate) enum Missed {
    Lost(Loss),
    Skipped(Skip),
}

/// Counts what `weight` periods came to.
#[inline]
pub(crate) fn count(control: &Control, outcome: &Outcome, weight: u32) {
    match outcome {
        Ok(()) => control.record(weight.into()),
        Err(Missed::Lost(cause)) => control.lose(*cause, weight.into()),
        Err(Missed::Skipped(cause)) => control.skip(*cause, weight.into()),
    }
}
