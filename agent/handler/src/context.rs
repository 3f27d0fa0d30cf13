//! The interrupted state that the kernel passes to a signal handler: registers, stack and mask.

use core::ffi::{c_int, c_void};
use core::marker::PhantomData;

use platform::arch::load;
use platform::bounds::Bounds;
use platform::sys;
use unwind::Registers;

use crate::arch;

/// The interrupted state, which the kernel saved on the handler's stack and restores when the handler returns.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    raw: *mut libc::ucontext_t,
    frame: PhantomData<&'a mut libc::ucontext_t>,
}

impl Context<'_> {
    /// # Safety
    /// `raw` must be the third argument of an SA_SIGINFO handler that has not returned, and no reference into it may be
    /// held.
    pub unsafe fn new(raw: *mut c_void) -> Self {
        Self { raw: raw.cast(), frame: PhantomData }
    }

    /// The machine-dependent part.
    fn machine(&self) -> &libc::mcontext_t {
        // SAFETY: the kernel's `ucontext`, which begins like libc's. libc's type is longer (its signal set has 128
        // bytes); nothing beyond the kernel's eight bytes of mask is read.
        unsafe { &(*self.raw).uc_mcontext }
    }

    /// The interrupted registers.
    pub fn registers(self) -> Registers {
        arch::registers(self.machine())
    }

    /// The interrupted stack pointer.
    pub fn stack_pointer(self) -> u64 {
        arch::stack_pointer(self.machine())
    }

    /// The interrupted frame pointer.
    pub(crate) fn frame_pointer(self) -> u64 {
        arch::frame_pointer(self.machine())
    }

    /// The lowest stack address that the interrupted code may be using.
    pub(crate) fn lowest_in_use(self) -> u64 {
        self.stack_pointer().saturating_sub(arch::RED_ZONE)
    }

    /// The interrupted program counter.
    pub fn instruction_pointer(self) -> u64 {
        arch::instruction_pointer(self.machine())
    }

    /// Whether the thread has just returned from a system call, as far as the architecture can tell.
    pub fn is_behind_a_call(self) -> bool {
        arch::is_behind_a_call(self.machine())
    }

    /// Whether the thread may be about to repeat a system call that waits, and that a signal handler without SA_RESTART ends.
    pub(crate) fn may_repeat_wait(self) -> bool {
        arch::may_repeat_wait(self.machine())
    }

    /// Whether the next instruction makes a system call. All signals must be blocked.
    pub(crate) fn is_at_call(self) -> bool {
        let pc = self.instruction_pointer();
        // SAFETY: the bytes were just seen readable, and the thread executes them.
        sys::is_readable(pc) && arch::is_call(unsafe { load(pc) })
    }

    /// Has the system call that would be repeated return EINTR instead.
    pub(crate) fn end_wait(self) {
        // SAFETY: the caller of `new` promised the kernel's `ucontext`, into which no reference is held.
        arch::end_call(unsafe { &mut (*self.raw).uc_mcontext }, libc::EINTR);
    }

    /// The thread's alternate signal stack; empty if it has none: the kernel then has 0 for both (`do_sigaltstack`, and
    /// `begin_new_exec`, which leaves the flag SS_DISABLE clear).
    #[inline]
    pub fn alternate_stack(self) -> Bounds {
        // SAFETY: the caller of `new` promised the kernel's `ucontext`.
        let stack = unsafe { &(*self.raw).uc_stack };
        let low = stack.ss_sp as u64;
        Bounds { low, high: low.saturating_add(stack.ss_size as u64) }
    }

    /// Its flags.
    pub(crate) fn alternate_stack_flags(self) -> c_int {
        // SAFETY: the caller of `new` promised the kernel's `ucontext`.
        unsafe { (*self.raw).uc_stack.ss_flags }
    }

    /// The kernel's description of that stack. No other method may be called while the result is held.
    pub(crate) fn alternate_stack_mut(&mut self) -> &mut libc::stack_t {
        // SAFETY: the caller of `new` promised the kernel's `ucontext`.
        unsafe { &mut (*self.raw).uc_stack }
    }

    /// Address of the kernel's signal frame.
    pub(crate) fn frame(self) -> u64 {
        self.raw as u64 - arch::CONTEXT_AT
    }

    /// End of that frame.
    pub(crate) fn frame_end(self) -> u64 {
        // SAFETY: the caller of `new` promised the kernel's `ucontext`.
        unsafe { arch::frame_end(self.raw) }
    }

    /// The signals that were blocked before the handler.
    pub fn signal_mask(self) -> u64 {
        // SAFETY: the kernel's set is the first eight bytes of the field.
        unsafe { (&raw const (*self.raw).uc_sigmask).cast::<u64>().read() }
    }

    /// Adds `signals` to the mask that the kernel restores when the handler returns.
    pub(crate) fn block(self, signals: u64) {
        // SAFETY: the kernel's set is the first eight bytes of the field.
        unsafe { (&raw mut (*self.raw).uc_sigmask).cast::<u64>().write(self.signal_mask() | signals) };
    }
}
