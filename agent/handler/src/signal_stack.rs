//! A thread's alternate signal stack that is the agent's own.
//!
//! A signal needs room on the stack that it interrupts, and a thread may have none left. So a thread for which the
//! program has set no alternate stack gets one of ours, as far as the kernel knows; the program sees none. What runs on
//! it is the sampling handler. A handler of the program's is put where the kernel would have put it, before it runs:
//! it may use as much stack as it likes, and leave by a jump or a switch of contexts.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::arch;
use crate::context::Context;
use crate::stack::Bounds;

/// Bytes mapped for one, with its guard, where the kernel does not say what its frame takes.
const UNKNOWN: usize = 32 << 10;
/// Bytes at its low end that stay inaccessible.
pub const GUARD: usize = 4096;
/// Frames of a signal keep their place in this alignment, which the processor's state in them needs.
const ALIGNMENT: u64 = 64;
/// What the handler needs below the kernel's frame, and a little.
const HANDLER: u64 = 2048 + 512;
/// What an unwinder of a region may need on top of that.
const UNWINDER: usize = 3072;
/// Signals that may lie on each other: a request that comes while a tick is handled.
const NESTED: usize = 2;

/// Bytes mapped for one, with its guard.
static MAPPED: AtomicUsize = AtomicUsize::new(UNKNOWN);
/// The program may have taken stacks of ours for its own.
static ADOPTED: AtomicBool = AtomicBool::new(false);

/// Sets what is mapped for a stack by `frame`, the bytes that the kernel writes for a signal (getauxval(3),
/// AT_MINSIGSTKSZ; 0 if it does not say). Before the first stack is made.
pub fn set_frame(frame: usize) {
    if frame > 0 {
        let used = NESTED * (frame + HANDLER as usize + ALIGNMENT as usize);
        MAPPED.store((GUARD + used + UNWINDER).next_multiple_of(GUARD), Ordering::Relaxed);
    }
}

/// Bytes mapped for one, with its guard.
pub fn mapped() -> usize {
    MAPPED.load(Ordering::Relaxed)
}

/// From now on no thread gets a stack of ours, and handlers stay on those that are there. Go's runtime asks the kernel
/// past the C library, and has its handlers run on the stack that it finds.
pub fn leave_to_program() {
    ADOPTED.store(true, Ordering::Relaxed);
}

/// True since [`leave_to_program`].
pub fn is_left_to_program() -> bool {
    ADOPTED.load(Ordering::Relaxed)
}

/// Where a thread's stack of ours is, if it has one. Stays mapped when the thread ends, for the next one.
#[derive(Debug, Default)]
pub struct SignalStack {
    base: AtomicU64,
}

impl SignalStack {
    /// The part that may be used; empty if there is none.
    pub fn bounds(&self) -> Bounds {
        match self.base.load(Ordering::Acquire) {
            0 => Bounds::NONE,
            base => Bounds { low: base + GUARD as u64, high: base + mapped() as u64 },
        }
    }

    /// Notes a mapping of [`mapped`] bytes at `base`; false if there is one already.
    pub fn set(&self, base: u64) -> bool {
        // Pairs with the acquire in `bounds`.
        self.base.compare_exchange(0, base, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Leaves the mapping to a thread that may go on using it, for ever.
    pub fn abandon(&self) {
        self.base.store(0, Ordering::Relaxed);
    }

    /// The kernel's description of it; disabled if there is none.
    pub fn description(&self) -> libc::stack_t {
        describe(self.bounds())
    }

    /// True if `stack` is this one.
    pub fn is(&self, stack: &libc::stack_t) -> bool {
        self.begins_at(stack.ss_sp as u64)
    }

    fn begins_at(&self, low: u64) -> bool {
        self.bounds() != Bounds::NONE && self.bounds().low == low
    }
}

/// The kernel's description of an alternate stack; disabled if it is empty.
pub fn describe(bounds: Bounds) -> libc::stack_t {
    let flags = if bounds == Bounds::NONE { libc::SS_DISABLE } else { 0 };
    libc::stack_t {
        ss_sp: ptr::with_exposed_provenance_mut(bounds.low as usize),
        ss_flags: flags,
        ss_size: (bounds.high - bounds.low) as usize,
    }
}

/// True if a stack pointer is on the stack, by the kernel's rule (include/linux/sched/signal.h, `__on_sig_stack`).
fn is_on(bounds: Bounds, sp: u64) -> bool {
    bounds.low < sp && sp <= bounds.high
}

/// True if there is room for the handler below the kernel's frame, as far as is known; `own` is the thread's stack.
pub(crate) fn has_room(context: Context<'_>, own: Bounds) -> bool {
    let frame = context.frame();
    let around = [context.alternate_stack(), own].into_iter().find(|bounds| is_on(*bounds, frame));
    around.is_none_or(|bounds| frame - bounds.low >= HANDLER)
}

/// Has the thread be on `stack`, its own, from the next signal on, if the program has set none. The kernel does that at the
/// return from this handler.
pub(crate) fn lend(stack: &SignalStack, mut context: Context<'_>) {
    let alternate = context.alternate_stack_mut();
    if alternate.ss_size == 0 && !is_left_to_program() {
        *alternate = stack.description();
    }
}

/// Where a handler of the program's is to find its frame: on the interrupted stack, if ours is the one it is on or if
/// it did not ask for another (`wants_alternate`). The frame is moved.
pub(crate) fn place<'a>(stack: &SignalStack, context: Context<'a>, wants_alternate: bool) -> Context<'a> {
    let (bounds, interrupted) = (context.alternate_stack(), context.stack_pointer());
    let switched = is_on(bounds, context.frame()) && !is_on(bounds, interrupted);
    let stays = wants_alternate && (is_left_to_program() || !stack.begins_at(bounds.low));
    match switched && !stays {
        // SAFETY: the kernel's frame; the interrupted stack is where it would have written.
        true => unsafe {
            let to = move_frame(context.frame(), context.frame_end(), interrupted - arch::RED_ZONE);
            Context::new((to + arch::CONTEXT_AT) as *mut _)
        },
        false => context,
    }
}

/// Copies a frame to below `top`, with the processor's state in it.
///
/// # Safety
/// `frame..end` is a signal's frame, and the program may write below `top` as the kernel would.
unsafe fn move_frame(frame: u64, end: u64, top: u64) -> u64 {
    let length = end - frame;
    let place = top - length;
    let to = place - (place.wrapping_sub(frame) & (ALIGNMENT - 1));
    // SAFETY: the caller's promise.
    unsafe {
        arch::copy(frame, to, length);
        arch::relocate((to + arch::CONTEXT_AT) as *mut libc::ucontext_t, to.wrapping_sub(frame));
    }
    to
}

/// Hides the stack from the program in a frame that its handler is about to get; true if it is in there.
pub(crate) fn hide(stack: &SignalStack, mut context: Context<'_>) -> bool {
    let alternate = context.alternate_stack_mut();
    let is_ours = stack.is(alternate) && !is_left_to_program();
    if is_ours {
        *alternate = describe(Bounds::NONE);
    }
    is_ours
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_known_by_its_description() {
        let stack = SignalStack::default();
        assert_eq!(stack.bounds(), Bounds::NONE);
        assert_eq!(stack.description().ss_flags, libc::SS_DISABLE);
        assert!(!stack.is(&stack.description()));
        assert!(stack.set(0x10000) && !stack.set(0x20000));
        assert_eq!(stack.bounds(), Bounds { low: 0x11000, high: 0x18000 });
        assert!(stack.is(&stack.description()));
        stack.abandon();
        assert_eq!(stack.bounds(), Bounds::NONE);
    }

    #[test]
    fn a_frame_moves_with_its_state_and_keeps_its_alignment() {
        #[repr(align(64))]
        struct Memory([u64; 1024]);
        let mut memory = Memory([0; 1024]);
        let base = (&raw mut memory.0) as u64;
        let frame = base + 4096 + 8;
        let state = base + 4096 + 1024;
        // SAFETY: inside the array.
        let to = unsafe {
            (frame as *mut u64).write(17);
            (state as *mut u64).write(23);
            (*((frame + 8) as *mut libc::ucontext_t)).uc_mcontext.fpregs = state as *mut _;
            move_frame(frame, state + 512, base + 3001)
        };
        assert!(to + 1536 - 8 <= base + 3001 && to % 64 == 8, "{:x}", to - base);
        // SAFETY: inside the array.
        unsafe {
            assert_eq!((to as *const u64).read(), 17);
            let moved = (*((to + 8) as *const libc::ucontext_t)).uc_mcontext.fpregs;
            assert_eq!((moved as u64 - to, moved.cast::<u64>().read()), (state - frame, 23));
        }
    }
}
