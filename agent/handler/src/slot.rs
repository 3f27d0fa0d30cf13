//! The slot: what the agent keeps for one thread.
//!
//! A slot belongs to one thread from claim to release. Its memory is never returned to the kernel, so a reference to a
//! slot stays valid whatever a signal carries. The memory that only samples need is taken at the first sample.

mod arena;
mod borrowed;
mod note;
mod state;
mod workspace;

use core::sync::atomic::{AtomicU32, Ordering};

pub use arena::{at, find, noted, taken};
pub(crate) use arena::{noted_inline, noted_unchecked, some};
pub(crate) use borrowed::BorrowedBench;
pub(crate) use note::has_ended;
pub use note::note_end;
pub use state::{Slot, count};
pub(crate) use workspace::Workbench;

use crate::snapshot::Snapshot;
use state::{DISCOVERED, Phase};

/// Most frames a sample can have.
pub const MAX_FRAMES: usize = shm_format::MAX_DEPTH;

static NEXT_SEQUENCE: AtomicU32 = AtomicU32::new(1);

/// Claims a slot for the registered thread `tid`.
pub fn claim(tid: u32, sequence: u32) -> Option<&'static Slot> {
    arena::claim_as(tid, sequence, Phase::Registered)
}

/// Finds or claims a slot for an unregistered thread.
pub fn adopt(tid: u32, sequence: u32) -> Option<&'static Slot> {
    // Such threads are looked up by id: their thread-local storage may be another thread's.
    if let Some(slot) = find(tid) {
        return Some(slot);
    }
    let slot = arena::claim_as(tid, sequence, Phase::Discovered)?;
    DISCOVERED.fetch_add(1, Ordering::Relaxed);
    Some(slot)
}

/// The slots of threads that will not report their end.
pub fn discovered() -> impl Iterator<Item = &'static Slot> {
    let any = DISCOVERED.load(Ordering::Relaxed) != 0;
    any.then(taken).into_iter().flatten().filter(|slot| slot.is_discovered())
}

/// True if some thread may be walking with `snapshot`, which is no longer published.
pub fn is_pinned(snapshot: *mut Snapshot) -> bool {
    arena::all().any(|slot| slot.pin.holds(snapshot) || slot.nested_pin.holds(snapshot))
}

/// A new thread's number.
pub fn next_sequence() -> u32 {
    NEXT_SEQUENCE.fetch_add(1, Ordering::Relaxed)
}

/// Notes the calling thread's slot.
pub fn set_current(slot: &Slot) {
    note::write(slot.token());
}
