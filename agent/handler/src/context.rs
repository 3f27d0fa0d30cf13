//! What the kernel hands to a signal handler: the interrupted registers, stack and mask.

use core::ffi::{c_int, c_void};

use unwind::Registers;

use crate::stack::Bounds;

/// The interrupted state, as the kernel saved it on the stack of the handler.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    raw: &'a libc::ucontext_t,
}

/// DWARF register number -> index into the kernel's `gregs` (System V ABI, figure 3.36).
const GREGS: [c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RDX,
    libc::REG_RCX,
    libc::REG_RBX,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_RBP,
    libc::REG_RSP,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Adds `signals` to the mask that the kernel restores when the handler returns.
///
/// # Safety
/// As for [`Context::new`]; no [`Context`] of the same memory is in use.
pub unsafe fn block(raw: *mut c_void, signals: u64) {
    // SAFETY: the kernel's set is the first eight bytes of the field.
    unsafe {
        let mask = (&raw mut (*raw.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>();
        mask.write(mask.read() | signals);
    }
}

impl Context<'_> {
    /// # Safety
    /// `raw` is the third argument of a signal handler installed with SA_SIGINFO, which has not returned.
    pub unsafe fn new(raw: *const c_void) -> Self {
        // SAFETY: the kernel passes a `ucontext`, whose head has libc's layout on x86-64. libc's type is longer
        // (its signal set has 128 bytes); nothing past the kernel's eight bytes of mask is read.
        Self { raw: unsafe { &*raw.cast::<libc::ucontext_t>() } }
    }

    fn register(self, index: c_int) -> u64 {
        self.raw.uc_mcontext.gregs.get(index as usize).map_or(0, |value| *value as u64)
    }

    /// The interrupted registers.
    pub fn registers(self) -> Registers {
        Registers { r: GREGS.map(|index| self.register(index)), pc: self.register(libc::REG_RIP) }
    }

    /// The interrupted stack pointer.
    pub fn stack_pointer(self) -> u64 {
        self.register(libc::REG_RSP)
    }

    /// The interrupted instruction.
    pub fn instruction_pointer(self) -> u64 {
        self.register(libc::REG_RIP)
    }

    /// True if the thread comes from a system call: the instruction leaves its return address in rcx, and the kernel
    /// keeps it there.
    pub fn is_behind_a_call(self) -> bool {
        self.register(libc::REG_RCX) == self.instruction_pointer()
    }

    /// The thread's alternate signal stack; empty if it has none.
    pub fn alternate_stack(self) -> Bounds {
        let stack = &self.raw.uc_stack;
        // In a process that has never set one no flag says so (fs/exec.c, `begin_new_exec`).
        if stack.ss_flags & libc::SS_DISABLE != 0 || stack.ss_size == 0 {
            return Bounds::NONE;
        }
        let low = stack.ss_sp as u64;
        Bounds { low, high: low.saturating_add(stack.ss_size as u64) }
    }

    /// Where this is.
    pub(crate) fn address(self) -> *const c_void {
        core::ptr::from_ref(self.raw).cast()
    }

    /// The end of the kernel's frame, which the processor's state is at (arch/x86/kernel/fpu/signal.c).
    pub(crate) fn frame_end(self) -> u64 {
        /// Of the kernel's `ucontext` and the `siginfo` after it, without the processor's state.
        const WITHOUT_STATE: u64 = 304 + 128;
        /// Of the state that every processor has.
        const LEGACY: u64 = 512;
        /// In the last bytes of that: a mark that more follows, and the length of all.
        const MARK: (usize, u32) = (464, 0x4650_5853);
        let state = self.raw.uc_mcontext.fpregs.cast::<u8>();
        if state.is_null() {
            return self.address() as u64 + WITHOUT_STATE;
        }
        // SAFETY: the kernel's pointer to at least 512 bytes in this very frame.
        let (mark, length) =
            unsafe { (state.add(MARK.0).cast::<u32>().read(), state.add(MARK.0 + 4).cast::<u32>().read()) };
        state as u64 + if mark == MARK.1 { u64::from(length) } else { LEGACY }
    }

    /// The signals that were blocked before the handler.
    pub fn signal_mask(self) -> u64 {
        // SAFETY: the kernel's set is the first eight bytes of the field.
        unsafe { (&raw const self.raw.uc_sigmask).cast::<u64>().read() }
    }
}
