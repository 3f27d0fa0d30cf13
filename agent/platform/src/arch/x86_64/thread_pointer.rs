//! The thread pointer (the base of fs), the control block there, and the agent's word in thread-local storage.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

/// Where a thread's control block has the thread's id, in 32 bits: glibc's, and musl's.
pub const CONTROL_BLOCK_TIDS: [u16; 2] = [0x2d0, 0x30];

/// AT_HWCAP2: programs may execute `rdfsbase` (arch/x86/include/uapi/asm/hwcap2.h).
const HWCAP2_FSGSBASE: u64 = 1 << 1;
static MAY_READ_BASE: AtomicBool = AtomicBool::new(false);

/// Tells what the machine can do, by AT_HWCAP2.
pub(crate) fn note_capabilities(capabilities: u64) {
    MAY_READ_BASE.store(capabilities & HWCAP2_FSGSBASE != 0, Ordering::Relaxed);
}

/// The thread pointer, whatever it is; `None` if only a system call could tell.
#[inline]
pub fn thread_pointer() -> Option<u64> {
    if !MAY_READ_BASE.load(Ordering::Relaxed) {
        return None;
    }
    let pointer;
    // SAFETY: the kernel permits the instruction, which reads a register.
    unsafe { asm!("rdfsbase {}", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    Some(pointer)
}

/// The result of `pthread_self`, with glibc and musl alike: the first word of the thread's control block is its own
/// address (System V ABI, x86-64 supplement; TLS variant II).
#[inline]
pub(crate) fn pthread_self() -> Option<u64> {
    let pointer;
    // SAFETY: a load from the thread's control block, which every thread with a C library has; a thread without one
    // runs no interpreter, so this is not called for it.
    unsafe {
        asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    Some(pointer)
}

/// The agent's thread-local word of the calling thread, or 0. Only while the thread pointer is usable
/// (`crate::thread_pointer`).
///
/// In an injected library the variable does not exist and its offset is 0. Since each thread's control block begins
/// there (x86-64 TLS ABI), offset 0 is never that of a variable.
#[inline]
pub fn thread_word() -> u64 {
    let word;
    // SAFETY: reads eight bytes of the thread's static TLS block, at an offset fixed by the loader.
    unsafe {
        asm!(
            "mov {0}, [rip + selfwind_slot@GOTTPOFF]",
            "test {0}, {0}",
            "jz 2f",
            "mov {0}, fs:[{0}]",
            "2:",
            out(reg) word,
            options(nostack, readonly),
        );
    }
    word
}

/// Where a thread with this thread pointer has that word; the control block in an injected library.
pub(crate) fn thread_word_address(pointer: u64) -> u64 {
    pointer.wrapping_add(thread_word_offset() as u64)
}

/// Whether threads have that word: not in an injected library.
pub fn has_thread_word() -> bool {
    thread_word_offset() != 0
}

fn thread_word_offset() -> usize {
    let offset;
    // SAFETY: loads the offset that the loader has filled in, or left 0.
    unsafe {
        asm!("mov {}, [rip + selfwind_slot@GOTTPOFF]", out(reg) offset, options(nostack, readonly, preserves_flags));
    }
    offset
}

/// Sets the agent's thread-local word of the calling thread. Only while the thread pointer is usable.
pub fn set_thread_word(word: u64) {
    // SAFETY: writes eight bytes of the thread's static TLS block that nothing else uses.
    unsafe {
        asm!(
            "mov {0}, [rip + selfwind_slot@GOTTPOFF]",
            "test {0}, {0}",
            "jz 2f",
            "mov fs:[{0}], {1}",
            "2:",
            out(reg) _,
            in(reg) word,
            options(nostack),
        );
    }
}
