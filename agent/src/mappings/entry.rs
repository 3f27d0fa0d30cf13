//! The interposed mapping functions, in the build that is preloaded for probes only.
//!
//! A few pushes cost little compared with the system call, so every call goes through here, recorded or not.

use core::arch::{global_asm, naked_asm};

use crate::preserved_registers::PreservedRegisters;

/// A call, as the code below pushes it on the stack.
#[repr(C)]
pub(super) struct Call {
    number: usize,
    pub(super) arguments: [u64; 6],
    preserved: PreservedRegisters,
}

// Entered by a jump, with the function's number in r11 and everything else as at the function's entry. Pushes `Call`,
// last field first.
global_asm!(
    ".text",
    ".p2align 4",
    ".globl selfwind_mapping_call",
    ".hidden selfwind_mapping_call",
    ".type selfwind_mapping_call,@function",
    "selfwind_mapping_call:",
    ".cfi_startproc",
    handler::push!(rbp rbx r12 r13 r14 r15 r9 r8 rcx rdx rsi rdi r11),
    "mov rdi, rsp",
    "call {called}",
    "add rsp, 104",
    ".cfi_adjust_cfa_offset -104",
    "ret",
    ".cfi_endproc",
    ".size selfwind_mapping_call, . - selfwind_mapping_call",
    called = sym super::called,
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
        /// Number of functions.
        pub(super) const COUNT: usize = [$($number),*].len();
        static ENTRIES: [unsafe extern "C" fn(); COUNT] = [$($name),*];
    };
}

functions! {
    0 mmap;
    1 mmap64;
    2 munmap;
    3 mremap;
}

/// The called function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Map,
    Unmap,
    Remap,
}

impl Call {
    /// Index in the table of real functions.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    pub(super) fn kind(&self) -> Kind {
        match self.number {
            0 | 1 => Kind::Map,
            2 => Kind::Unmap,
            _ => Kind::Remap,
        }
    }

    /// The calling function.
    pub(super) fn caller(&self) -> handler::caller::Caller {
        self.preserved.caller(ENTRIES.get(self.number).map_or(0, |entry| *entry as usize as u64))
    }
}
