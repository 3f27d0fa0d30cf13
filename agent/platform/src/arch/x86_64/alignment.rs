//! The flag by which the processor faults (SIGBUS) at each access that is not aligned: EFLAGS.AC.
//!
//! A program may set it: Java's virtual machine does for a moment while it looks at the processor. The kernel leaves it set
//! in signal handlers, and the agent's code makes unaligned accesses.

use core::arch::asm;

const ALIGNMENT_CHECK: u64 = 1 << 18;

/// Permits unaligned accesses while it exists, even if the program has set the flag against them. AMD's processors also check
/// vector instructions, which compilers use to copy and compare.
pub struct AnyAlignment {
    was_checked: bool,
}

impl AnyAlignment {
    /// Reads the flag, and clears it if it is set.
    #[inline]
    pub fn permit() -> Self {
        let flags: u64;
        // SAFETY: reads the flags by way of the stack.
        unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) };
        let was_checked = flags & ALIGNMENT_CHECK != 0;
        if was_checked {
            toggle_alignment_check();
        }
        Self { was_checked }
    }
}

impl Drop for AnyAlignment {
    #[inline]
    fn drop(&mut self) {
        if self.was_checked {
            toggle_alignment_check();
        }
    }
}

#[cold]
#[inline(never)]
fn toggle_alignment_check() {
    // SAFETY: changes no flag that compiled code depends on.
    unsafe { asm!("pushfq", "xor dword ptr [rsp], {}", "popfq", const ALIGNMENT_CHECK) };
}

/// Clears the flag at the entry of a handler: lines of `asm!`. The kernel leaves it as it was in the interrupted code. The program's
/// handlers then run without it, too.
#[macro_export]
macro_rules! permit_any_alignment {
    () => {
        "pushfq
        .cfi_adjust_cfa_offset 8
        test dword ptr [rsp], 0x40000
        lea rsp, [rsp + 8]
        .cfi_adjust_cfa_offset -8
        jz 3f
        pushfq
        .cfi_adjust_cfa_offset 8
        and dword ptr [rsp], ~0x40000
        popfq
        .cfi_adjust_cfa_offset -8
        3:"
    };
}
