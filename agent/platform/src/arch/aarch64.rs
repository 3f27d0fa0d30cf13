//! aarch64 under Linux.

use core::arch::asm;

/// Where a thread's control block has the thread's id: not known here.
pub const CONTROL_BLOCK_TIDS: [u16; 0] = [];

/// Tells what the machine can do, by AT_HWCAP2.
pub(crate) fn note_capabilities(_capabilities: u64) {}

/// The thread pointer: not used here yet.
pub fn thread_pointer() -> Option<u64> {
    None
}

/// The result of `pthread_self`: unknown here, since only the C library knows its offset from the thread pointer.
pub(crate) fn pthread_self() -> Option<u64> {
    None
}

/// Loads eight bytes (any alignment) by one instruction: the program may be writing them.
///
/// # Safety
/// The bytes must be mapped readable.
#[inline]
pub unsafe fn load(address: u64) -> u64 {
    let value;
    // SAFETY: the caller promises readable bytes. A load in assembly has no provenance and is no data race for Rust.
    unsafe {
        asm!("ldr {}, [{}]", out(reg) value, in(reg) address, options(nostack, readonly, preserves_flags))
    };
    value
}

/// `other` with the bits flipped that are set in the word at number `index` from `base` on, which is loaded as [`load`] does.
///
/// # Safety
/// The bytes must be mapped readable.
#[inline(always)]
pub unsafe fn load_xor(base: u64, index: u64, other: u64) -> u64 {
    let word: u64;
    // SAFETY: as in `load`.
    unsafe {
        asm!("ldr {}, [{}, {}, lsl 3]", out(reg) word, in(reg) base, in(reg) index, options(nostack, readonly, preserves_flags))
    };
    word ^ other
}

/// Loads the eight bytes at `offset` of the structure at `base`, as [`load`] does.
///
/// # Safety
/// The bytes must be mapped readable.
#[inline]
pub unsafe fn load_field(base: u64, offset: u16) -> u64 {
    let value;
    // SAFETY: as in `load`.
    unsafe {
        asm!("ldr {}, [{}, {}]", out(reg) value, in(reg) base, in(reg) u64::from(offset), options(nostack, readonly, preserves_flags))
    };
    value
}

/// Permits unaligned accesses while it exists. Programs cannot forbid them on this architecture.
pub struct AnyAlignment;

impl AnyAlignment {
    /// Does nothing.
    #[inline]
    pub fn permit() -> Self {
        Self
    }
}

/// Makes a system call and returns the kernel's result.
///
/// # Safety
/// The caller is responsible for the effect of this system call with these arguments.
#[inline(always)]
pub(crate) unsafe fn system_call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    let result;
    // SAFETY: the aarch64 system call convention: number in x8, arguments in x0..x5; the kernel clobbers x0 only. The
    // caller is responsible for the effect.
    unsafe {
        asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") arguments[0] => result,
            in("x1") arguments[1],
            in("x2") arguments[2],
            in("x3") arguments[3],
            in("x4") arguments[4],
            in("x5") arguments[5],
            options(nostack),
        );
    }
    result
}

/// Reads the generic timer's counter.
#[inline]
pub(crate) fn counter() -> u64 {
    let value;
    // SAFETY: Linux permits user mode to read it.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Whether the process may ask the processor what it can do.
pub(crate) fn may_ask_processor() -> bool {
    true
}

/// The generic timer runs at a constant rate in every power state (Arm ARM, D12.1.2).
pub(crate) fn counter_is_invariant() -> bool {
    true
}

/// The agent's thread-local word of the calling thread, or 0.
///
/// In an injected library the variable does not exist and its offset is 0. Since each thread's control block begins
/// there (TLS variant I), offset 0 is never that of a variable.
#[inline]
pub fn thread_word() -> u64 {
    let word;
    // SAFETY: reads eight bytes of the thread's static TLS block, at an offset fixed by the loader.
    unsafe {
        asm!(
            "adrp {0}, :gottprel:selfwind_slot",
            "ldr {0}, [{0}, :gottprel_lo12:selfwind_slot]",
            "cbz {0}, 2f",
            "mrs {1}, tpidr_el0",
            "ldr {0}, [{1}, {0}]",
            "2:",
            out(reg) word,
            out(reg) _,
            options(nostack, readonly, preserves_flags),
        );
    }
    word
}

/// Where a thread with this thread pointer has that word.
pub(crate) fn thread_word_address(pointer: u64) -> u64 {
    pointer
}

/// Whether threads have that word: not in an injected library.
pub fn has_thread_word() -> bool {
    let offset: usize;
    // SAFETY: loads the offset that the loader has filled in, or left 0.
    unsafe {
        asm!(
            "adrp {0}, :gottprel:selfwind_slot",
            "ldr {0}, [{0}, :gottprel_lo12:selfwind_slot]",
            out(reg) offset,
            options(nostack, readonly, preserves_flags),
        );
    }
    offset != 0
}

/// Sets the agent's thread-local word of the calling thread.
pub fn set_thread_word(word: u64) {
    // SAFETY: writes eight bytes of the thread's static TLS block that nothing else uses.
    unsafe {
        asm!(
            "adrp {0}, :gottprel:selfwind_slot",
            "ldr {0}, [{0}, :gottprel_lo12:selfwind_slot]",
            "cbz {0}, 2f",
            "mrs {1}, tpidr_el0",
            "str {2}, [{1}, {0}]",
            "2:",
            out(reg) _,
            out(reg) _,
            in(reg) word,
            options(nostack, preserves_flags),
        );
    }
}
