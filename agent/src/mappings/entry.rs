//! The interposed mapping functions, in the build that is preloaded for probes only.
//!
//! A few pushes cost little compared with the system call, so every call goes through here, recorded or not.

use core::arch::{global_asm, naked_asm};

use super::mapping_call::COUNT;

// Entered by a jump, with the function's number in r11 and everything else as at the function's entry. Pushes `Call`,
// last field first. Hands it over with the address of the function that the program called.
global_asm!(
    ".text",
    ".p2align 4",
    ".globl selfwind_mapping_call",
    ".hidden selfwind_mapping_call",
    ".type selfwind_mapping_call,@function",
    "selfwind_mapping_call:",
    ".cfi_startproc",
    platform::push!(rbp rbx r12 r13 r14 r15 r9 r8 rcx rdx rsi rdi r11),
    "mov rdi, rsp",
    "lea rsi, [rip + {entries}]",
    "mov rsi, [rsi + 8 * r11]",
    "call {called}",
    "add rsp, 104",
    ".cfi_adjust_cfa_offset -104",
    "ret",
    ".cfi_endproc",
    ".size selfwind_mapping_call, . - selfwind_mapping_call",
    called = sym super::called,
    entries = sym ENTRIES,
);

macro_rules! functions {
    ($($number:literal $name:ident;)*) => {
        $(
            /// As the C library says.
            ///
            /// # Safety
            /// As the C library says.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub(crate) unsafe extern "C" fn $name() {
                naked_asm!(
                    ".cfi_startproc",
                    "mov r11d, {number}",
                    "jmp selfwind_mapping_call",
                    ".cfi_endproc",
                    number = const $number
                )
            }
        )*
        static ENTRIES: [unsafe extern "C" fn(); COUNT] = [$($name),*];
    };
}

functions! {
    0 mmap;
    1 mmap64;
    2 munmap;
    3 mremap;
}
