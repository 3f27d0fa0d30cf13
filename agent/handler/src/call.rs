//! The stack of a call that the program has made, from ordinary context: of an allocation, of a wait for a lock.
//!
//! The program has called a function that this library stands in front of, so no signal has saved its registers: the
//! entry has, of those that a call preserves. All else is as in the signal handler, whose rules hold here too
//! (`ordinary_walk`): a thread may be in the middle of the loader's lock when it allocates, and a signal handler may
//! allocate or post a semaphore.

use shm_format::{Loss, Skip, StackHead};

use crate::caller::Caller;
use crate::clock;
use crate::ordinary_walk::own_slot;
use crate::outcome::{self, Missed};
use crate::recording::Recording;
use crate::sample::tell;

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
    let _entered = slot.enter(caller.stack_pointer).ok_or(Missed::Skipped(Skip::Nested))?;
    if !recording.is_current() {
        return Err(Missed::Skipped(Skip::Stopped));
    }
    if !slot.prepare() {
        return Err(Missed::Lost(Loss::NoSlot));
    }
    // SAFETY: inside the guard, prepared, and the only one.
    let mut bench = unsafe { slot.bench() };
    let (walk, chain, frames) = caller.walk(recording, slot, &mut bench);
    // The innermost frame is the called function.
    let frames = frames.get(usize::from(!note.with_callee)..).unwrap_or(&[]);
    let head = StackHead { weight: 1, end: walk.end as u8, source: note.source, nonce: note.nonce };
    tell(recording, chain.write(&slot.cursor, &recording.region, head, frames, clock::now))?;
    if !walk.end.is_complete() {
        recording.region.control().truncate();
    }
    Ok(slot.sequence())
}
