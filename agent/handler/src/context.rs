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

    /// The thread's alternate signal stack; empty if it has none.
    pub fn alternate_stack(self) -> Bounds {
        let stack = &self.raw.uc_stack;
        if stack.ss_flags & libc::SS_DISABLE != 0 {
            return Bounds::NONE;
        }
        let low = stack.ss_sp as u64;
        Bounds { low, high: low.saturating_add(stack.ss_size as u64) }
    }

    /// The signals that were blocked before the handler.
    pub fn signal_mask(self) -> u64 {
        // SAFETY: the kernel's set is the first eight bytes of the field.
        unsafe { (&raw const self.raw.uc_sigmask).cast::<u64>().read() }
    }
}
