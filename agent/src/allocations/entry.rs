//! The interposed functions of the allocator, present only in the library for `-e alloc`.
//!
//! An allocation that is not sampled costs a subtraction and a jump; a free reads one byte. What must never happen here: a
//! frame of the agent below the real function on that path, or a C++ exception that unwinds into Rust. So these functions
//! are written in assembly, and jump. Only if a call may be sampled is the real function called, from a frame with unwind
//! information.

use core::arch::naked_asm;
use core::sync::atomic::AtomicU8;

use super::countdown::{OWNER_AT, PLACE_SHIFT, PLACES, SHARED};
use super::real::{COUNT, REALS};
use crate::preserved_registers::PreservedRegisters;

/// Pages distinguished by the filter of sampled blocks; further pages share their bytes.
pub(super) const PAGES: usize = 1 << 18;

/// Which function was called, as an index into the tables here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind(pub(super) usize);

/// Whether a function is known to call another one of these for its block.
pub(super) mod mode {
    /// Not known yet.
    pub(in super::super) const UNKNOWN: u8 = 0;
    /// One call did not.
    pub(in super::super) const ONCE_ALONE: u8 = 1;
    /// One call did.
    pub(in super::super) const ONCE_NESTED: u8 = 2;
    /// It does not, so it counts bytes itself.
    pub(in super::super) const COUNTS: u8 = 3;
    /// It does, and the other one counts; or nothing is counted.
    pub(in super::super) const PASSES: u8 = 4;
}

// The parts of an interposed function. `sized` puts the requested number of bytes into r11.
macro_rules! sized {
    (first) => {
        "mov r11, rdi"
    };
    (second) => {
        "mov r11, rsi"
    };
    (third) => {
        "mov r11, rdx"
    };
    // Saturates if the product overflows.
    (first_by_second) => {
        "mov rax, rdi
        mul rsi
        mov r11, rax
        jno 3f
        mov r11, -1
        3:"
    };
    (second_by_third) => {
        "mov r10, rdx
        mov rax, rsi
        mul rdx
        mov r11, rax
        mov rdx, r10
        jno 3f
        mov r11, -1
        3:"
    };
}

// The block that the call gives up may be a sampled one.
macro_rules! given_up {
    (nothing) => {
        ""
    };
    (first) => {
        "mov rax, rdi
        shr rax, 12
        and eax, {pages} - 1
        lea r10, [rip + {sampled}]
        cmp byte ptr [r10 + rax], 0
        jne 2f"
    };
}

// Puts what is left of the thread's countdown into r10, and where it is into rax: in the thread-local storage of a preloaded
// library, or in the place of the thread.
macro_rules! located {
    (preloaded) => {
        "mov rax, [rip + selfwind_countdown@GOTTPOFF]
        mov r10, fs:[rax]"
    };
    (injected) => {
        "mov rax, fs:0
        shr rax, 12
        and eax, {places} - 1
        shl eax, {place_shift}
        lea r10, [rip + {shared}]
        add rax, r10
        mov r10, fs:0
        cmp [rax + {owner}], r10
        jne 2f
        mov r10, [rax]"
    };
}

// Stores r10 there.
macro_rules! stored {
    (preloaded) => {
        "mov fs:[rax], r10"
    };
    (injected) => {
        "mov [rax], r10"
    };
}

// Counts always, or according to the function's mode.
macro_rules! counted {
    (always $library:ident) => {
        stored!($library)
    };
    (by_mode $library:ident) => {
        concat!(
            "cmp byte ptr [rip + {modes} + {kind}], {counts}
            jb 2f
            ja 4f
            ",
            stored!($library),
            "
            4:"
        )
    };
}

macro_rules! allocating {
    ($library:ident $(#[$exported:meta])?, $kind:literal, $name:ident, $size:ident, $gives_up:ident, $counts:ident) => {
        /// As the C or C++ library says.
        ///
        /// # Safety
        /// As the C or C++ library says.
        $(#[$exported])?
        #[unsafe(naked)]
        #[allow(non_snake_case)]
        pub(crate) unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                // Not every function needs all of these operands.
                "# {counts} {pages} {sampled} {modes} {shared} {owner} {places} {place_shift}",
                given_up!($gives_up),
                sized!($size),
                located!($library),
                "sub r10, r11",
                "jbe 2f",
                counted!($counts $library),
                "jmp [rip + {reals} + 8 * {kind}]",
                // The call may be sampled: build a `Call`, from its end.
                // Allocators that note their callers follow frame pointers.
                "2:",
                handler::push!(rbp),
                "mov rbp, rsp",
                ".cfi_offset rbp, -16",
                handler::push!(rbx r12 r13 r14 r15 rdx rsi rdi),
                "push {kind}",
                ".cfi_adjust_cfa_offset 8",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "lea rdi, [rsp + 8]",
                "call {before}",
                "mov [rsp], rax",
                "mov rdi, [rsp + 16]",
                "mov rsi, [rsp + 24]",
                "mov rdx, [rsp + 32]",
                "call [rip + {reals} + 8 * {kind}]",
                "lea rdi, [rsp + 8]",
                "mov rsi, [rsp]",
                "mov rdx, rax",
                "mov [rsp], rax",
                "call {after}",
                "mov rax, [rsp]",
                "mov rbp, [rbp]",
                ".cfi_restore rbp",
                "add rsp, 88",
                ".cfi_adjust_cfa_offset -88",
                "ret",
                ".cfi_endproc",
                kind = const $kind,
                counts = const mode::COUNTS,
                pages = const PAGES,
                sampled = sym SAMPLED_PAGES,
                modes = sym MODES,
                shared = sym SHARED,
                owner = const OWNER_AT,
                places = const PLACES,
                place_shift = const PLACE_SHIFT,
                reals = sym REALS,
                before = sym crate::allocations::before,
                after = sym crate::allocations::after,
            )
        }
    };
}

macro_rules! freeing {
    ($kind:literal, $name:ident) => {
        /// As the C or C++ library says.
        ///
        /// # Safety
        /// As the C or C++ library says.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[allow(non_snake_case)]
        pub(crate) unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "mov rax, rdi",
                "shr rax, 12",
                "and eax, {pages} - 1",
                "lea r10, [rip + {sampled}]",
                "cmp byte ptr [r10 + rax], 0",
                "jne 2f",
                "jmp [rip + {reals} + 8 * {kind}]",
                "2:",
                handler::push!(rdi rsi rdx),
                "call {freed}",
                handler::pop!(rdx rsi rdi),
                "jmp [rip + {reals} + 8 * {kind}]",
                ".cfi_endproc",
                kind = const $kind,
                pages = const PAGES,
                sampled = sym SAMPLED_PAGES,
                reals = sym REALS,
                freed = sym super::freed,
            )
        }
    };
}

macro_rules! functions {
    (
        allocating { $($kind:literal $name:ident $size:ident $gives_up:ident $counts:ident;)* }
        freeing { $($freeing:literal $free:ident;)* }
    ) => {
        $(allocating!(preloaded #[unsafe(no_mangle)], $kind, $name, $size, $gives_up, $counts);)*
        $(freeing!($freeing, $free);)*
        /// The functions for calls that an injected library redirects.
        mod injected {
            use super::*;
            $(allocating!(injected, $kind, $name, $size, $gives_up, $counts);)*
        }
        /// Number of allocating functions.
        pub(super) const ALLOCATING: usize = [$($kind),*].len();
        /// The functions to which an injected library redirects calls.
        pub(super) static INJECTED: [unsafe extern "C" fn(); COUNT] = [$(injected::$name,)* $($free,)*];
        // The tables of the real functions have the same order.
        const _: () = assert!(ALLOCATING + [$($freeing),*].len() == COUNT);
    };
}

/// The mode of each function.
pub(super) static MODES: [AtomicU8; COUNT] = [const { AtomicU8::new(mode::UNKNOWN) }; COUNT];

/// Number of sampled blocks that begin in each page.
pub(super) static SAMPLED_PAGES: [AtomicU8; PAGES] = [const { AtomicU8::new(0) }; PAGES];

functions! {
    allocating {
        0 malloc first nothing always;
        1 calloc first_by_second nothing by_mode;
        2 realloc second first always;
        3 reallocarray second_by_third first by_mode;
        4 memalign second nothing by_mode;
        5 aligned_alloc second nothing by_mode;
        6 posix_memalign third nothing by_mode;
        7 valloc first nothing by_mode;
        8 pvalloc first nothing by_mode;
        9 _Znwm first nothing by_mode;
        10 _Znam first nothing by_mode;
        11 _ZnwmRKSt9nothrow_t first nothing by_mode;
        12 _ZnamRKSt9nothrow_t first nothing by_mode;
        13 _ZnwmSt11align_val_t first nothing by_mode;
        14 _ZnamSt11align_val_t first nothing by_mode;
        15 _ZnwmSt11align_val_tRKSt9nothrow_t first nothing by_mode;
        16 _ZnamSt11align_val_tRKSt9nothrow_t first nothing by_mode;
    }
    freeing {
        17 free;
        18 _ZdlPv;
        19 _ZdaPv;
        20 _ZdlPvm;
        21 _ZdaPvm;
        22 _ZdlPvRKSt9nothrow_t;
        23 _ZdaPvRKSt9nothrow_t;
        24 _ZdlPvSt11align_val_t;
        25 _ZdaPvSt11align_val_t;
        26 _ZdlPvmSt11align_val_t;
        27 _ZdaPvmSt11align_val_t;
        28 _ZdlPvSt11align_val_tRKSt9nothrow_t;
        29 _ZdaPvSt11align_val_tRKSt9nothrow_t;
    }
}

impl Kind {
    const REALLOC: Kind = Kind(2);
    const REALLOCARRAY: Kind = Kind(3);

    /// Whether the function gives up another block.
    pub(super) fn resizes(self) -> bool {
        self == Self::REALLOC || self == Self::REALLOCARRAY
    }
}

/// A call of an allocating function, as the interposed function lays it out on the stack.
#[repr(C)]
pub(super) struct Call {
    kind: usize,
    arguments: [u64; 3],
    preserved: PreservedRegisters,
}

impl Call {
    pub(super) fn kind(&self) -> Kind {
        Kind(self.kind)
    }

    /// The block that the call gives up for the new one.
    pub(super) fn given_up(&self) -> u64 {
        if self.kind().resizes() { self.arguments[0] } else { 0 }
    }

    /// Requested bytes.
    pub(super) fn size(&self) -> u64 {
        let [first, second, third] = self.arguments;
        match self.kind {
            1 => first.saturating_mul(second),
            2 | 4 | 5 => second,
            3 => second.saturating_mul(third),
            6 => third,
            _ => first,
        }
    }

    /// The allocated block, derived from the function's result; 0 if there is none.
    pub(super) fn block(&self, result: u64) -> u64 {
        const POSIX_MEMALIGN: usize = 6;
        match (self.kind, result) {
            // SAFETY: on success posix_memalign(3) has stored the block where its first argument says.
            (POSIX_MEMALIGN, 0) => unsafe { (self.arguments[0] as *const u64).read() },
            (POSIX_MEMALIGN, _) => 0,
            _ => result,
        }
    }

    /// The caller.
    pub(super) fn caller(&self) -> handler::caller::Caller {
        // At their first instruction, all of them have the same unwind information.
        self.preserved.caller(INJECTED.get(self.kind).map_or(0, |entry| *entry as usize as u64))
    }
}
