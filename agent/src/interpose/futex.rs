//! `syscall` in the build that watches locks: locks of other languages call futex(2) through it.

use core::arch::naked_asm;

use super::seccomp;
use crate::locks::entry;

/// The C library's `syscall`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn syscall() {
    naked_asm!(
        ".cfi_startproc",
        "cmp rdi, {number}",
        "je {futex}",
        "jmp {others}",
        ".cfi_endproc",
        number = const libc::SYS_futex,
        futex = sym entry::futex,
        others = sym seccomp::syscall,
    )
}
