//! The stack of a call that the program has made, from ordinary context: of an allocation, of a wait for a lock.
//!
//! The program has called a function that this library stands in front of, so no signal has saved its registers: the
//! entry has, of those that a call preserves. All else is as in the signal handler, whose rules hold here too
//! (`ordinary_walk`): a thread may be in the middle of the loader's lock when it allocates, and a signal handler may
//! allocate or post a semaphore.

use shm_format::{Loss, Skip};

use crate::caller::Caller;
use crate::clock;
use crate::ordinary_walk::{own_slot, walk};
use crate::outcome::{self, Missed};
use crate::recording::Recording;
use crate::sample::{Sample, words};

/// What a call is recorded as.
#[derive(Clone, Copy, Debug)]
pub struct Note {
    /// The number of the source in records.
    pub source: u8,
    /// What the source says of the call.
    pub nonce: u64,
    /// The called function is a frame of the stack, too.
    pub with_callee: bool,
}

/// Records the stack of a call. The number of the calling thread; none if there is no record.
pub fn record(recording: &Recording, caller: &Caller, note: Note) -> Option<u32> {
    let entered = clock::now();
    let control = recording.region.control();
    control.fire(1);
    let (outcome, thread) = match sample(recording, caller, note) {
        Ok(thread) => (Ok(()), Some(thread)),
        Err(missed) => (Err(missed), None),
    };
    outcome::count(control, &outcome, 1);
    control.handler_time(clock::now().wrapping_sub(entered));
    thread
}

fn sample(recording: &Recording, caller: &Caller, note: Note) -> Result<u32, Missed> {
    if recording.is_over() {
        return Err(Missed::Skipped(Skip::Stopped));
    }
    let slot = own_slot(caller.stack_pointer).ok_or(Missed::Skipped(Skip::DisabledThread))?;
    let _entered = slot.nesting.enter().ok_or(Missed::Skipped(Skip::Nested))?;
    if !recording.is_current() {
        return Err(Missed::Skipped(Skip::Stopped));
    }
    if !slot.prepare() {
        return Err(Missed::Lost(Loss::NoSlot));
    }
    let walk = walk(recording, slot, &caller.registers());
    // SAFETY: the guard makes this the only use of the stack cache.
    let frames = words(unsafe { &*slot.stack_cache() }.frames());
    // The innermost frame is the called function.
    let frames = frames.get(usize::from(!note.with_callee)..).unwrap_or(&[]);
    let sample = Sample::of_walk(recording, slot, walk, frames);
    sample.record(1, note.source, note.nonce)?;
    sample.count_end();
    Ok(slot.sequence())
}
