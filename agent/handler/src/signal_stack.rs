//! Alternate signal stacks of the agent.
//!
//! A signal needs space on the stack that it interrupts, and a thread may have none left. So a thread for which the
//! program has set no alternate stack gets one of the agent; the kernel knows it, the program sees none. Only the
//! sampling handler runs on it. The frame of a handler of the program is moved to where the kernel would have put it,
//! before the handler runs: that may use any amount of stack, and leave by a jump or a context switch.
//!
//! The same holds for a thread whose alternate stack is another thread's as well (see `shared_stack`), or has no space for
//! a sample beside a handler of the program: the agent's stack hides that of the program.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use platform::bounds::Bounds;

use crate::arch;
use crate::context::Context;

/// Bytes mapped for a stack, with its guard, if the kernel does not report the size of its signal frame.
const UNKNOWN: usize = 32 << 10;
/// Bytes of the inaccessible guard at the low end.
pub const GUARD: usize = 4096;
/// Moved frames keep their address modulo this, as the processor state in them requires.
const ALIGNMENT: u64 = 64;
/// Stack use of the handler below the kernel's frame, with a margin.
const HANDLER: u64 = 2048 + 512;
/// Additional stack for the unwinder of a region.
const UNWINDER: usize = 3072;
/// Signals that may nest: a request during the handling of a tick.
const NESTED: usize = 2;
/// Stack use of a handler of the program, with the kernel's frame for it.
const PROGRAM: u64 = 8 << 10;

/// Bytes mapped for a stack, with its guard.
static MAPPED: AtomicUsize = AtomicUsize::new(UNKNOWN);
/// The program may use stacks of the agent as its own.
static ADOPTED: AtomicBool = AtomicBool::new(false);

/// Sets the size of a stack from `frame`, the size of the kernel's signal frame (getauxval(3), AT_MINSIGSTKSZ; 0 if
/// unknown). Must be called before the first stack is mapped.
pub fn set_frame(frame: usize) {
    if frame > 0 {
        let used = NESTED * (frame + HANDLER as usize + ALIGNMENT as usize);
        MAPPED.store((GUARD + used + UNWINDER).next_multiple_of(GUARD), Ordering::Relaxed);
    }
}

/// Bytes mapped for a stack, with its guard.
pub fn mapped() -> usize {
    MAPPED.load(Ordering::Relaxed)
}

/// From now on no thread gets a stack of the agent, and handlers stay on existing ones. Go's runtime asks the kernel
/// directly, and runs its handlers on the stack that it finds.
pub fn leave_to_program() {
    ADOPTED.store(true, Ordering::Relaxed);
}

/// Whether [`leave_to_program`] was called.
pub fn is_left_to_program() -> bool {
    ADOPTED.load(Ordering::Relaxed)
}

/// Flag: the stack is disabled while a handler runs on it (include/uapi/linux/signal.h, SS_AUTODISARM).
pub const AUTODISARM: c_int = c_int::MIN;
/// No address of a stack: what the kernel knows must be compared with what other threads have.
const UNSETTLED: u64 = 1;

/// A thread's alternate stacks: that of the agent, which stays mapped when the thread ends, for the next one; and that of
/// the program.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SignalStack {
    base: AtomicU64,
    /// What the program has set, as far as known: bounds and flags.
    program_low: AtomicU64,
    program_high: AtomicU64,
    program_flags: AtomicI32,
    /// The kernel knows the agent's stack although the program has set one.
    hides_program: AtomicBool,
    /// What stands for the program's is a mapping of the agent, made for this thread.
    is_private: AtomicBool,
    /// Low end of the stack that the kernel may keep for the thread; 0 for none.
    settled: AtomicU64,
}

impl SignalStack {
    /// Forgets what the previous thread's program had set.
    pub(crate) fn begin(&self) {
        self.set_program(Bounds::NONE, 0);
        self.set_hides_program(false);
        self.is_private.store(false, Ordering::Relaxed);
        self.unsettle();
    }

    /// The usable part of the agent's; empty if there is none.
    pub fn bounds(&self) -> Bounds {
        match self.base.load(Ordering::Acquire) {
            0 => Bounds::NONE,
            base => Bounds { low: base + GUARD as u64, high: base + mapped() as u64 },
        }
    }

    /// Stores a mapping of [`mapped`] bytes at `base`; false if there is one already.
    pub fn set(&self, base: u64) -> bool {
        // Release: pairs with the acquire in `bounds`.
        let is_set = self.base.compare_exchange(0, base, Ordering::Release, Ordering::Relaxed).is_ok();
        if is_set {
            self.unsettle();
        }
        is_set
    }

    /// Leaves the mapping to a thread that may use it forever.
    pub fn abandon(&self) {
        self.base.store(0, Ordering::Relaxed);
    }

    /// The kernel's description of the agent's; disabled if there is none.
    pub fn description(&self) -> libc::stack_t {
        describe(self.bounds())
    }

    /// Whether `stack` is the agent's.
    pub fn is(&self, stack: &libc::stack_t) -> bool {
        self.begins_at(stack.ss_sp as u64)
    }

    fn begins_at(&self, low: u64) -> bool {
        self.bounds() != Bounds::NONE && self.bounds().low == low
    }

    /// What the program has set, as far as known.
    pub fn program(&self) -> Bounds {
        let (low, high) = (self.program_low.load(Ordering::SeqCst), self.program_high.load(Ordering::SeqCst));
        Bounds { low, high }
    }

    /// Notes what the program has set. Another thread that reads a mixture finds, at worst, a stack shared that is not.
    pub(crate) fn set_program(&self, bounds: Bounds, flags: c_int) {
        self.program_low.store(bounds.low, Ordering::SeqCst);
        self.program_high.store(bounds.high, Ordering::SeqCst);
        self.program_flags.store(flags & AUTODISARM, Ordering::Relaxed);
    }

    /// Whether the kernel knows the agent's stack although the program has set one.
    pub fn hides_program(&self) -> bool {
        self.hides_program.load(Ordering::Relaxed)
    }

    /// Sets whether the agent's stack stands for one of the program.
    pub fn set_hides_program(&self, hides: bool) {
        self.hides_program.store(hides, Ordering::Relaxed);
    }

    /// Gives the thread a mapping of the agent, above a guard, for the program's handlers as well: to them it is as good
    /// as the program's.
    pub(crate) fn set_private(&self, bounds: Bounds) {
        self.set_program(bounds, 0);
        self.is_private.store(true, Ordering::Relaxed);
    }

    /// Takes that mapping, with its guard, from a thread that has ended; empty if there is none.
    pub fn take_private(&self) -> Bounds {
        if !self.is_private.swap(false, Ordering::Relaxed) {
            return Bounds::NONE;
        }
        let Bounds { low, high } = self.program();
        Bounds { low: low - GUARD as u64, high }
    }

    /// What the program believes the thread's stack to be while the kernel knows that of the agent, and code runs at `sp`.
    pub fn believed(&self, sp: u64) -> libc::stack_t {
        if !self.hides_program() {
            return describe(Bounds::NONE);
        }
        let on_it = if is_on(self.program(), sp) { libc::SS_ONSTACK } else { 0 };
        libc::stack_t {
            ss_flags: self.program_flags.load(Ordering::Relaxed) | on_it,
            ..describe(self.program())
        }
    }

    /// Low end of the stack that the kernel may keep for the thread; 0 for none.
    #[inline]
    pub(crate) fn settled(&self) -> u64 {
        self.settled.load(Ordering::SeqCst)
    }

    /// Whether the kernel is known to have the agent's stack.
    pub(crate) fn is_on_own(&self) -> bool {
        let own = self.bounds();
        own != Bounds::NONE && self.settled() == own.low
    }

    /// The kernel may keep that stack.
    pub fn settle(&self, low: u64) {
        self.settled.store(low, Ordering::SeqCst);
    }

    /// The thread's stack must be examined at its next sample.
    pub(crate) fn unsettle(&self) {
        self.settle(UNSETTLED);
    }
}

/// Whether a handler of the program on that stack may leave no space for a sample.
pub fn is_small(bounds: Bounds) -> bool {
    let sample = (mapped() - GUARD) as u64;
    bounds != Bounds::NONE && bounds.high - bounds.low < PROGRAM + sample
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

/// Whether a stack pointer is on the stack, by the kernel's rule (include/linux/sched/signal.h, `__on_sig_stack`).
pub fn is_on(bounds: Bounds, sp: u64) -> bool {
    bounds.low < sp && sp <= bounds.high
}

/// Whether the handler has enough space below the kernel's frame, as far as is known; `own` is the thread's stack.
pub(crate) fn has_room(context: Context<'_>, own: Bounds) -> bool {
    let frame = context.frame();
    let around = [context.alternate_stack(), own].into_iter().find(|bounds| is_on(*bounds, frame));
    around.is_none_or(|bounds| frame - bounds.low >= HANDLER)
}

/// Moves the signal frame to where a handler of the program expects it, if it is on the agent's stack or the handler did
/// not ask for an alternate one (`wants_alternate`): to the program's alternate stack, of which `free` is unused, or to
/// the interrupted one.
pub(crate) fn place<'a>(
    stack: &SignalStack,
    context: Context<'a>,
    wants_alternate: bool,
    free: impl FnOnce() -> Bounds,
) -> Context<'a> {
    let (bounds, interrupted) = (context.alternate_stack(), context.stack_pointer());
    let switched = is_on(bounds, context.frame()) && !is_on(bounds, interrupted);
    let stays = wants_alternate && (is_left_to_program() || !stack.begins_at(bounds.low));
    if !switched || stays {
        return context;
    }
    let (frame, end) = (context.frame(), context.frame_end());
    let enters = wants_alternate && stack.hides_program() && !is_on(stack.program(), interrupted);
    let top = match enters.then(free) {
        Some(free) if free.high - free.low < end - frame + ALIGNMENT => return context,
        Some(free) => free.high,
        None => interrupted - arch::RED_ZONE,
    };
    // SAFETY: the kernel's frame. The kernel would have written it there itself: below the interrupted stack pointer, or
    // on the stack of the program, which is large enough.
    unsafe {
        let to = move_frame(frame, end, top);
        Context::new((to + arch::CONTEXT_AT) as *mut _)
    }
}

/// Copies a frame to below `top`, including the processor state.
///
/// # Safety
/// `frame..end` must be a signal frame, and the memory below `top` writable, as for the kernel.
unsafe fn move_frame(frame: u64, end: u64, top: u64) -> u64 {
    let length = end - frame;
    let lowest = top - length;
    let to = lowest - (lowest.wrapping_sub(frame) & (ALIGNMENT - 1));
    // SAFETY: the caller promises a signal frame and writable memory.
    unsafe {
        arch::copy(frame, to, length);
        arch::relocate((to + arch::CONTEXT_AT) as *mut libc::ucontext_t, to.wrapping_sub(frame));
    }
    to
}

/// Hides the stack from the program in a frame that its handler is about to get; returns whether the frame contained
/// it.
pub(crate) fn hide(stack: &SignalStack, mut context: Context<'_>) -> bool {
    let alternate = context.alternate_stack_mut();
    let is_ours = stack.is(alternate) && !is_left_to_program();
    if is_ours {
        *alternate = stack.believed(0);
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
