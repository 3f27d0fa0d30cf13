//! A walk outside the signal handler: the thread calls the agent, so no signal has saved its registers.
//!
//! The handler's rules hold here too: the thread may hold the loader's lock, or be in a signal handler of the program.
//! Signals are not blocked; a sampling signal during the walk finds the slot's nesting guard taken. Only a walk that
//! must probe memory blocks signals while it runs.

use platform::activity::is_filtered;
use platform::arch;
use platform::bounds::Bounds;
use platform::sys::{self, SignalsBlocked};
use unwind::{End, Leaf, Registers, Walk};

use crate::discovery;
use crate::learned_stack;
use crate::other_rules::OtherRules;
use crate::recording::Recording;
use crate::slot::{self, Slot, Workbench};
use crate::snapshot::{self, Pinned};
use crate::stack::Stack;

/// The slot of the calling thread, whose stack pointer is `sp`; `None` if the noted slot is another thread's. Once
/// system calls are filtered, the noted slot is taken to be its own.
pub(crate) fn own_slot(sp: u64) -> Option<&'static Slot> {
    own(slot::noted_inline(), sp)
}

/// [`own_slot`] for a thread that has just used its thread-local storage.
#[inline(always)]
pub(crate) fn own_slot_at_once(sp: u64) -> Option<&'static Slot> {
    own(slot::noted_unchecked(), sp)
}

#[inline(always)]
fn own(noted: Option<&'static Slot>, sp: u64) -> Option<&'static Slot> {
    let Some(slot) = noted else { return without_note() };
    let is_own = slot.stack().hold(sp)
        || is_filtered()
        // The thread is on another stack, or shares the thread-local storage of another one: ask the kernel.
        || slot.tid() == sys::thread_id();
    is_own.then_some(slot)
}

/// The slot of the calling thread if no thread has a note, because the agent was injected.
#[cold]
fn without_note() -> Option<&'static Slot> {
    if arch::has_thread_word() { None } else { discovery::adopt(sys::thread_id()) }
}

/// Walks the stack of the calling thread from `registers`; the frames are in the stack cache of `bench`, which the caller
/// has borrowed. Also returns whether the interpreter or registered regions may have frames to insert; such a walk is not
/// yet reported to the chain.
pub(crate) fn walk_on(
    recording: &Recording,
    slot: &Slot,
    registers: &Registers,
    bench: &mut Workbench<'_>,
) -> (Walk, bool) {
    let sp = registers.sp();
    let own = own_stack(slot, sp);
    let known = match own.hold(sp) {
        true => Bounds { low: own.low.max(sp), high: own.high },
        false => Bounds::NONE,
    };
    let mut walked = None;
    if known != Bounds::NONE {
        walked = Some(walk_in(recording, slot, registers, bench, known, false));
    }
    // Probe memory that is not known to be mapped, or that a guess leads to. A probe may change the signal mask
    // (`sys::is_readable`).
    if walked.is_none_or(|(walk, _)| !walk.end.is_complete()) && !is_filtered() {
        let _blocked = SignalsBlocked::enter();
        walked = Some(walk_in(recording, slot, registers, bench, known, true));
    }
    let walked = walked.unwrap_or_else(|| {
        bench.stack_cache.forget();
        (Walk::fresh(0, End::Unreadable), false)
    });
    if walked.0.end == End::NoModule {
        snapshot::note_unknown_code();
    }
    walked
}

/// The stack of the calling thread, or nothing if `sp` points elsewhere.
fn own_stack(slot: &Slot, sp: u64) -> Bounds {
    let own = slot.stack();
    if own.hold(sp) || !slot.is_discovered() {
        return own;
    }
    let _blocked = SignalsBlocked::enter();
    learned_stack::learn(slot, sp)
}

/// Walks once, and reports the walk to the chain unless there may be frames to insert, which is returned too. `known` is
/// mapped; other memory is probed if `may_probe`.
fn walk_in(
    recording: &Recording,
    slot: &Slot,
    registers: &Registers,
    bench: &mut Workbench<'_>,
    known: Bounds,
    may_probe: bool,
) -> (Walk, bool) {
    let Workbench { stack_cache, chain, scratch, pages, pin } = bench;
    let mut memory = Stack::new(known, registers.sp(), may_probe, pages);
    let (walk, is_mixed) = match Pinned::new(pin) {
        Some(pinned) => {
            let mut other_rules = OtherRules::new(&pinned, recording, scratch.regions());
            if !pinned.regions().is_empty() {
                other_rules.begin([slot.stack(), Bounds::NONE], may_probe);
            }
            let mut walk = unwind::walk_with(
                pinned.modules(),
                recording.cache,
                &Leaf::of(&|| *registers),
                &mut memory,
                stack_cache,
                recording.max_frames,
                &mut other_rules,
            );
            let is_mixed = !pinned.is_native();
            if is_mixed {
                // The thread's last record may have inserted frames among those of the walk.
                walk.unchanged = 0;
            }
            (walk, is_mixed)
        }
        None => {
            stack_cache.forget();
            (Walk::fresh(0, End::NoModule), false)
        }
    };
    if !is_mixed {
        chain.walked(walk.unchanged);
    }
    (walk, is_mixed)
}
