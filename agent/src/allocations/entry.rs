//! The interposed functions of the allocator, present only in the library for `-e alloc`.
//!
//! An allocation that is not sampled costs a subtraction and a jump; a free reads one bit. What must never happen here: a
//! frame of the agent below the real function on that path, or a C++ exception that unwinds into Rust. So these functions
//! are written in assembly, and jump. Only if a call may be sampled is the real function called, from a frame with unwind
//! information.

use core::arch::naked_asm;

use platform::arch::AnyAlignment;

use super::allocation_call::Call;
use super::countdown::{OWNER_AT, PLACE_SHIFT, PLACES, SHARED};
use super::mode::{self, MODES};
use super::real::{ALLOCATING, COUNT, OF_PROGRAM, REALS};
use super::sampled_pages::{SAMPLED_PAGES, WORDS};
use super::sampling;

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

// The block that the call gives up may be a sampled one, if the bit of its page is set.
macro_rules! given_up {
    (nothing) => {
        ""
    };
    (first) => {
        "mov rax, rdi
        shr rax, 17
        and eax, {words} - 1
        lea r10, [rip + {sampled}]
        mov eax, [r10 + rax * 8]
        mov r10, rdi
        shr r10, 12
        bt eax, r10d
        jc 2f"
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
    (
        $library:ident, $reals:ident $(#[$exported:meta])?, $kind:literal, $name:ident, $size:ident, $gives_up:ident,
        $counts:ident
    ) => {
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
                "# {counts} {words} {sampled} {modes} {shared} {owner} {places} {place_shift}",
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
                platform::push!(rbp),
                "mov rbp, rsp",
                ".cfi_offset rbp, -16",
                platform::push!(rbx r12 r13 r14 r15 rdx rsi rdi),
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
                words = const WORDS,
                sampled = sym SAMPLED_PAGES,
                modes = sym MODES,
                shared = sym SHARED,
                owner = const OWNER_AT,
                places = const PLACES,
                place_shift = const PLACE_SHIFT,
                reals = sym $reals,
                before = sym sampling::before,
                after = sym after,
            )
        }
    };
}

macro_rules! freeing {
    ($reals:ident $(#[$exported:meta])?, $kind:literal, $name:ident) => {
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
                given_up!(first),
                "jmp [rip + {reals} + 8 * {kind}]",
                "2:",
                platform::push!(rdi rsi rdx),
                "call {freed}",
                platform::pop!(rdx rsi rdi),
                "jmp [rip + {reals} + 8 * {kind}]",
                ".cfi_endproc",
                kind = const $kind,
                words = const WORDS,
                sampled = sym SAMPLED_PAGES,
                reals = sym $reals,
                freed = sym sampling::freed,
            )
        }
    };
}

macro_rules! functions {
    (
        allocating { $($kind:literal $name:ident $size:ident $gives_up:ident $counts:ident;)* }
        freeing { $($freeing:literal $free:ident;)* }
    ) => {
        $(allocating!(preloaded, REALS #[unsafe(no_mangle)], $kind, $name, $size, $gives_up, $counts);)*
        $(freeing!(REALS #[unsafe(no_mangle)], $freeing, $free);)*
        /// The functions for calls that an injected library redirects.
        mod injected {
            use super::*;
            $(allocating!(injected, REALS, $kind, $name, $size, $gives_up, $counts);)*
        }
        /// The functions to which an injected library redirects calls.
        pub(super) static INJECTED: [unsafe extern "C" fn(); COUNT] = [$(injected::$name,)* $($free,)*];
        /// The functions for calls to an allocator that the program defines.
        mod to_program {
            use super::*;
            $(allocating!(preloaded, OF_PROGRAM, $kind, $name, $size, $gives_up, $counts);)*
            $(freeing!(OF_PROGRAM, $freeing, $free);)*
        }
        /// The functions to which calls to an allocator that the program defines are redirected.
        pub(super) static TO_PROGRAM: [unsafe extern "C" fn(); COUNT] =
            [$(to_program::$name,)* $(to_program::$free,)*];
        // The tables of the real functions have the same order.
        const _: () = assert!([$($kind),*].len() == ALLOCATING && ALLOCATING + [$($freeing),*].len() == COUNT);
    };
}

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

/// Hands a call over after it was made.
unsafe extern "C" fn after(call: &Call, given_up: u64, result: u64) {
    let _any_alignment = AnyAlignment::permit();
    // At their first instruction, all of them have the same unwind information.
    let entry = INJECTED.get(call.kind().0).map_or(0, |entry| *entry as usize as u64);
    sampling::after(call, entry, given_up, result);
}
