//! Alternate signal stacks that several threads have set.
//!
//! A program may give all its threads the same stack, if it only ever runs one handler on it: that of a fatal signal.
//! Samples of two threads would destroy each other there. So of all threads with overlapping stacks at most one, which
//! set its own before the others and has not been sampled since, keeps it in the kernel. The others get a stack of the
//! agent, which hides the program's where the program's calls are seen, and replaces it where they are not: in a process
//! that was attached to.

use core::ffi::c_int;

use platform::activity::is_filtered;
use platform::bounds::Bounds;
use platform::sys;

use crate::context::Context;
use crate::signal_stack::{self, GUARD, is_on};
use crate::slot::{self, Slot};

/// Notes what the program has set for the slot's thread; returns whether another thread has an overlapping stack.
pub fn note(slot: &Slot, program: Bounds, flags: c_int) -> bool {
    let stack = &slot.signal_stack;
    // Sequentially consistent, like all accesses to these words: of two threads that do this at a time at least one sees
    // what the other has stored.
    stack.set_program(program, flags);
    stack.settle(program.low);
    let is_shared = others(slot, program) != Others::Nobody;
    if is_shared {
        stack.unsettle();
    }
    is_shared
}

/// Other threads with the same stack.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    /// None.
    Nobody,
    /// The kernel knows the agent's stack for each.
    Apart,
    /// The kernel may still know it for one.
    OnIt,
}

/// The other threads with a stack that overlaps `bounds`. Those that are on it examine theirs at their next sample.
#[inline(never)]
fn others(slot: &Slot, bounds: Bounds) -> Others {
    let mut found = Others::Nobody;
    for other in slot::taken().filter(|other| !core::ptr::eq(*other, slot)) {
        let (stack, program) = (&other.signal_stack, other.signal_stack.program());
        if program.low < bounds.high && bounds.low < program.high {
            if stack.is_on_own() {
                found = if found == Others::OnIt { found } else { Others::Apart };
            } else {
                stack.unsettle();
                found = Others::OnIt;
            }
        }
    }
    found
}

/// The part of the program's stack that a handler may use although it is not known to the kernel: the thread that the
/// kernel still knows it for may be sampled at its top.
pub(crate) fn free_part(slot: &Slot) -> Bounds {
    let program = slot.signal_stack.program();
    let sampled = (signal_stack::mapped() - GUARD) as u64;
    match others(slot, program) {
        Others::OnIt if program.high - program.low >= 2 * sampled => {
            Bounds { high: program.high - sampled, ..program }
        }
        _ => program,
    }
}

/// Reverts, in the frame that a handler of the program returns through, what was shown to the handler.
pub(crate) fn resume(slot: &Slot, context: Context<'_>) {
    let stack = &slot.signal_stack;
    match stack.hides_program() && context.alternate_stack() == stack.program() {
        true => replace(context, stack.bounds()),
        false => keep_apart(slot, context),
    }
}

/// Ensures that the thread's next signal needs no space that another thread may be using, nor, if there is a stack of
/// the agent, any on the interrupted stack. `slot` must be the calling thread's. The kernel applies a change at the
/// return from this handler.
#[inline]
pub(crate) fn keep_apart(slot: &Slot, context: Context<'_>) {
    let known = context.alternate_stack();
    if slot.signal_stack.settled() != known.low {
        examine(slot, context, known);
    }
}

#[cold]
#[inline(never)]
fn examine(slot: &Slot, context: Context<'_>, known: Bounds) {
    let stack = &slot.signal_stack;
    let own = if signal_stack::is_left_to_program() { Bounds::NONE } else { stack.bounds() };
    if known == own {
        stack.settle(known.low);
    } else if known == Bounds::NONE {
        stack.set_program(Bounds::NONE, 0);
        stack.set_hides_program(false);
        replace(context, own);
        stack.settle(own.low);
    } else if note(slot, known, context.alternate_stack_flags()) {
        leave(slot, context, known, own);
    }
}

/// Takes the thread off its stack `known`, which another thread has as well.
fn leave(slot: &Slot, context: Context<'_>, known: Bounds, own: Bounds) {
    let stack = &slot.signal_stack;
    if is_on(known, context.stack_pointer()) || signal_stack::is_left_to_program() {
        // The kernel does not change the stack of a thread that runs on it.
    } else if own != Bounds::NONE {
        // Not settled before the kernel is seen to have changed it: until then this handler runs on the old one.
        stack.set_hides_program(true);
        replace(context, own);
    } else if is_filtered() {
        // The program's filter of system calls may kill for a mapping.
    } else if let Some(private) = map(known) {
        stack.set_private(private);
        stack.settle(private.low);
        replace(context, private);
    }
}

fn replace(mut context: Context<'_>, stack: Bounds) {
    *context.alternate_stack_mut() = signal_stack::describe(stack);
}

/// A stack with as much space as `other` and what samples need.
fn map(other: Bounds) -> Option<Bounds> {
    let bytes =
        ((other.high - other.low) as usize + signal_stack::mapped()).next_multiple_of(sys::PAGE as usize);
    let base = sys::map_guarded(bytes, GUARD)? as u64;
    Some(Bounds { low: base + GUARD as u64, high: base + bytes as u64 })
}
