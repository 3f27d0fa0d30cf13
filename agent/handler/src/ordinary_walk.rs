//! A walk from ordinary context: the thread calls the agent, so no signal has saved its registers.
//!
//! The handler's rules hold here too: a thread may be in the middle of the loader's lock, or inside a handler of its own.
//! Signals are not blocked: one that comes meanwhile finds the slot's nesting guard taken. Where memory must be probed,
//! they are, for that walk.

use unwind::{End, Registers, Walk};

use crate::activity::is_filtered;
use crate::recording::Recording;
use crate::slot::{self, Slot};
use crate::snapshot::{self, Pinned};
use crate::stack::{Bounds, Stack};
use crate::sys;

/// The slot of the calling thread, whose stack pointer is `sp`; none if the noted one is another thread's.
pub(crate) fn own_slot(sp: u64) -> Option<&'static Slot> {
    let slot = slot::noted()?;
    let is_own = slot.stack().hold(sp)
        || is_filtered()
        // On another stack, or a thread without thread-local storage of its own.
        || slot.tid() == sys::thread_id();
    is_own.then_some(slot)
}

/// Walks the stack of the calling thread from `registers`; its frames are the stack cache's. Inside the slot's nesting
/// guard.
pub(crate) fn walk(recording: &Recording, slot: &Slot, registers: &Registers) -> Walk {
    let own = slot.stack();
    let sp = registers.sp();
    let known = match own.hold(sp) {
        true => Bounds { low: own.low.max(sp), high: own.high },
        false => Bounds::NONE,
    };
    let mut walk = None;
    if known != Bounds::NONE {
        walk = Some(walk_in(recording, slot, registers, &mut Stack::new([known, Bounds::NONE], false)));
    }
    // Memory that is not known, or that a guess leads to, is probed. That may change the mask (`sys::is_readable`).
    if walk.is_none_or(|walk| !walk.end.is_complete()) && !is_filtered() {
        let mask = sys::set_signal_mask(!0);
        walk = Some(walk_in(recording, slot, registers, &mut Stack::new([known, Bounds::NONE], true)));
        sys::set_signal_mask(mask);
    }
    let walk = walk.unwrap_or_else(|| {
        // SAFETY: the caller's guard makes this the only use of the stack cache.
        unsafe { &mut *slot.stack_cache() }.forget();
        Walk::fresh(0, End::Unreadable)
    });
    if walk.end == End::NoModule {
        snapshot::note_unknown_code();
    }
    walk
}

/// One walk in `memory`, of which the chain of records is told.
fn walk_in(recording: &Recording, slot: &Slot, registers: &Registers, memory: &mut Stack) -> Walk {
    // SAFETY: the caller is inside the nesting guard, which makes this the only use of the stack cache and of the chain.
    let (stack_cache, chain) = unsafe { (&mut *slot.stack_cache(), &mut *slot.chain()) };
    let walk = match Pinned::new(&slot.pin) {
        Some(pinned) => unwind::walk(
            pinned.modules(),
            recording.cache,
            registers,
            memory,
            stack_cache,
            recording.max_frames,
        ),
        None => {
            stack_cache.forget();
            Walk::fresh(0, End::NoModule)
        }
    };
    chain.walked(walk.unchanged);
    walk
}
