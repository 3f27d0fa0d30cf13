//! The caller's registers, as a signal handler would find them in its ucontext.

use std::arch::asm;
use unwind::Registers;

/// The registers here and now. Inlined, so that they are those of the calling function.
#[inline(always)]
pub(crate) fn here() -> Registers {
    let mut r = [0u64; 16];
    let pc;
    // SAFETY: only stores registers to the array and computes an address; nothing is changed.
    unsafe {
        asm!(
            "mov [{r} + 24], rbx",
            "mov [{r} + 48], rbp",
            "mov [{r} + 56], rsp",
            "mov [{r} + 96], r12",
            "mov [{r} + 104], r13",
            "mov [{r} + 112], r14",
            "mov [{r} + 120], r15",
            "lea {pc}, [rip]",
            r = in(reg) r.as_mut_ptr(),
            pc = out(reg) pc,
            options(nostack, preserves_flags),
        );
    }
    Registers { r, pc }
}
