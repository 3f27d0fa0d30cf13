//! One sampled allocation: its stack, from ordinary context, and its entry among the live blocks.
//!
//! The program has called an allocator and waits for its block, so no signal has saved its registers: the entry has, of
//! those that a call preserves. All else is as in the signal handler, whose rules hold here too: a thread may be in the
//! middle of the loader's lock when it allocates, and a signal handler may allocate.
//!
//! Signals are not blocked: one that comes meanwhile finds the slot's nesting guard taken. Where the stack is not the
//! thread's own, so that memory must be probed, they are, for that walk.

use shm_format::{AllocationNonce, Loss, Skip, StackHead};
use unwind::{End, Registers, Walk};

use crate::activity::is_filtered;
use crate::arch;
use crate::clock;
use crate::outcome::{self, Missed};
use crate::recording::{Recording, Source};
use crate::sample::{Sample, words};
use crate::slot::{self, Slot};
use crate::snapshot::{self, Pinned};
use crate::stack::{Bounds, Stack};
use crate::sys;

/// The registers that a call preserves, as they were when the allocator was called.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// Where the called function begins.
    pub entry: u64,
    /// The stack pointer there: where the return address is.
    pub stack_pointer: u64,
    /// The registers that a call preserves, in the order of `arch::registers_at_entry`.
    pub preserved: [u64; arch::PRESERVED],
}

impl Caller {
    fn registers(&self) -> Registers {
        arch::registers_at_entry(self.entry, self.stack_pointer, self.preserved)
    }
}

/// Records an allocation of `size` bytes, the `serial`-th of the calling thread. The number of that thread; none if there
/// is no record of it.
pub fn record(recording: &Recording, caller: &Caller, size: u64, serial: u64) -> Option<u32> {
    let entered = clock::now();
    let control = recording.region.control();
    control.fire(1);
    let sampled = sample(recording, caller, size, serial);
    let (outcome, thread) = match sampled {
        Ok(thread) => (Ok(()), Some(thread)),
        Err(missed) => (Err(missed), None),
    };
    outcome::count(control, &outcome, 1);
    control.handler_time(clock::now().wrapping_sub(entered));
    thread
}

fn sample(recording: &Recording, caller: &Caller, size: u64, serial: u64) -> Result<u32, Missed> {
    if recording.is_over() {
        return Err(Missed::Skipped(Skip::Stopped));
    }
    let slot = own_slot(caller)?;
    let _entered = slot.nesting.enter().ok_or(Missed::Skipped(Skip::Nested))?;
    if !recording.is_current() {
        return Err(Missed::Skipped(Skip::Stopped));
    }
    if !slot.prepare() {
        return Err(Missed::Lost(Loss::NoSlot));
    }
    let walk = walk(recording, slot, caller);
    // SAFETY: the guard makes this the only use of the stack cache.
    let frames = words(unsafe { &*slot.stack_cache() }.frames());
    // The innermost frame is the allocator's entry.
    let sample = Sample::of_walk(recording, slot, walk, frames.get(1..).unwrap_or(&[]));
    let (source, nonce) = (Source::Allocations.number(), AllocationNonce::new(size, serial).0);
    sample.record(StackHead { weight: 1, end: 0, source, nonce })?;
    Ok(slot.sequence())
}

/// The slot of the calling thread, which says itself whose it is.
fn own_slot(caller: &Caller) -> Result<&'static Slot, Missed> {
    let slot = slot::noted().ok_or(Missed::Skipped(Skip::DisabledThread))?;
    let is_own = slot.stack().hold(caller.stack_pointer)
        || is_filtered()
        // On another stack, or a thread without thread-local storage of its own.
        || slot.tid() == sys::thread_id();
    if is_own { Ok(slot) } else { Err(Missed::Skipped(Skip::DisabledThread)) }
}

/// Walks the stack of whoever called the allocator; its frames are the stack cache's. Inside the slot's nesting guard.
fn walk(recording: &Recording, slot: &Slot, caller: &Caller) -> Walk {
    let own = slot.stack();
    let sp = caller.stack_pointer;
    let known = match own.hold(sp) {
        true => Bounds { low: own.low.max(sp), high: own.high },
        false => Bounds::NONE,
    };
    let mut walk = None;
    if known != Bounds::NONE {
        walk = Some(walk_in(recording, slot, caller, &mut Stack::new([known, Bounds::NONE], false)));
    }
    // Memory that is not known, or that a guess leads to, is probed. That may change the mask (`sys::is_readable`).
    if walk.is_none_or(|walk| !walk.end.is_complete()) && !is_filtered() {
        let mask = sys::set_signal_mask(!0);
        walk = Some(walk_in(recording, slot, caller, &mut Stack::new([known, Bounds::NONE], true)));
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
fn walk_in(recording: &Recording, slot: &Slot, caller: &Caller, memory: &mut Stack) -> Walk {
    // SAFETY: the caller is inside the nesting guard, which makes this the only use of the stack cache and of the chain.
    let (stack_cache, chain) = unsafe { (&mut *slot.stack_cache(), &mut *slot.chain()) };
    let walk = match Pinned::new(&slot.pin) {
        Some(pinned) => {
            let (modules, registers) = (pinned.modules(), caller.registers());
            unwind::walk(modules, recording.cache, &registers, memory, stack_cache, recording.max_frames)
        }
        None => {
            stack_cache.forget();
            Walk::fresh(0, End::NoModule)
        }
    };
    chain.walked(walk.unchanged);
    walk
}
