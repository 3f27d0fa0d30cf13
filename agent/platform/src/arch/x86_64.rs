//! x86-64 under Linux.

mod alignment;
mod thread_pointer;

use core::arch::asm;
use core::arch::x86_64::{__cpuid, _rdtsc};

pub use alignment::AnyAlignment;
pub use thread_pointer::*;

/// Pushes registers, the first one first, with call frame information: lines of `asm!`.
#[macro_export]
macro_rules! push {
    ($($register:ident)*) => {
        concat!($("push ", stringify!($register), "\n.cfi_adjust_cfa_offset 8\n"),*)
    };
}

/// Pops registers that [`push!`] pushed.
#[macro_export]
macro_rules! pop {
    ($($register:ident)*) => {
        concat!($("pop ", stringify!($register), "\n.cfi_adjust_cfa_offset -8\n"),*)
    };
}

/// Defines `$name`, which returns the calling thread's `$type` in the thread-local storage `$symbol`: all zero at
/// first; `None` in an injected library.
#[macro_export]
macro_rules! thread_block {
    ($visibility:vis fn $name:ident() -> $type:ty, $symbol:literal) => {
        $crate::thread_bytes!($symbol, size_of::<$type>());

        /// The calling thread's; `None` in an injected library.
        $visibility fn $name() -> Option<*mut $type> {
            let address: usize;
            // SAFETY: computes the address of the thread's own bytes. The first word of a thread's block is its own
            // address (x86-64 TLS ABI).
            unsafe {
                core::arch::asm!(
                    concat!("mov {0}, [rip + ", $symbol, "@GOTTPOFF]"),
                    "test {0}, {0}",
                    "jz 2f",
                    "add {0}, fs:[0]",
                    "2:",
                    out(reg) address,
                    options(nostack, readonly),
                );
            }
            (address != 0).then_some(address as *mut $type)
        }
    };
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
        asm!("mov {}, [{}]", out(reg) value, in(reg) address, options(nostack, readonly, preserves_flags))
    };
    value
}

/// `other` with the bits flipped that are set in the word at number `index` from `base` on, which is loaded as [`load`] does.
///
/// # Safety
/// The bytes must be mapped readable.
#[inline(always)]
pub unsafe fn load_xor(base: u64, index: u64, other: u64) -> u64 {
    let mut value = other;
    // SAFETY: as in `load`.
    unsafe {
        asm!("xor {}, [{} + 8 * {}]", inout(reg) value, in(reg) base, in(reg) index, options(nostack, readonly))
    };
    value
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
        asm!("mov {}, [{} + {}]", out(reg) value, in(reg) base, in(reg) u64::from(offset), options(nostack, readonly, preserves_flags))
    };
    value
}

/// Makes a system call and returns the kernel's result.
///
/// # Safety
/// The caller is responsible for the effect of this system call with these arguments.
#[inline(always)]
pub(crate) unsafe fn system_call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    let result;
    // SAFETY: the x86-64 system call convention: number in rax, arguments in rdi rsi rdx r10 r8 r9; the kernel clobbers
    // rcx and r11 only. The caller is responsible for the effect.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Reads the time-stamp counter.
#[inline]
pub(crate) fn counter() -> u64 {
    // SAFETY: every x86-64 processor has rdtsc. It faults in a process that has disabled it (PR_SET_TSC), as that asked
    // for.
    unsafe { _rdtsc() }
}

/// Whether the process may execute `cpuid`.
pub(crate) fn may_ask_processor() -> bool {
    /// arch/x86/include/uapi/asm/prctl.h
    const ARCH_GET_CPUID: usize = 0x1011;
    // SAFETY: this operation only reads.
    unsafe { system_call(libc::SYS_arch_prctl, [ARCH_GET_CPUID, 0, 0, 0, 0, 0]) != 0 }
}

/// Whether the processor guarantees a constant rate of the counter in every power state (invariant TSC).
pub(crate) fn counter_is_invariant() -> bool {
    // Every 64-bit processor has this leaf: they all have the next one, for the sizes of addresses. In a virtual machine
    // each question takes microseconds.
    const POWER_MANAGEMENT: u32 = 0x8000_0007;
    const INVARIANT: u32 = 1 << 8;
    __cpuid(POWER_MANAGEMENT).edx & INVARIANT != 0
}
