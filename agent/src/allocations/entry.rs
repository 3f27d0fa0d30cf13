//! The interposed functions of the allocator, present only in the library for `-e alloc`.
//!
//! An allocation that is not sampled costs a subtraction and a jump; a free reads one bit. What both read, code aside, is in two
//! cache lines while a process has one thread. What must never happen here: a frame of the agent below the real function on that
//! path, or a C++ exception that unwinds into Rust. So these functions are written in assembly, and jump. Only if a call may be
//! sampled is the real function called, from a frame with unwind information.

use core::arch::naked_asm;

use platform::arch::AnyAlignment;

use super::allocation_call::Call;
use super::countdown::{OWNER_AT, PLACE_SHIFT, PLACES, SHARED};
use super::mode::{self, MODES};
use super::real::{ALLOCATING, COUNT, OF_PROGRAM, REALS, Reals};
use super::sampled_blocks::{self, GROUP_SHIFT, GROUPS, NOTES, ONE, PAGE_SHIFT};
use super::sampling;

// The parts of an interposed function. `sized` leaves the requested number of bytes in the register `size`.
macro_rules! sized {
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
    ($argument:ident) => {
        ""
    };
}

macro_rules! size {
    (first) => {
        "rdi"
    };
    (second) => {
        "rsi"
    };
    (third) => {
        "rdx"
    };
    ($product:ident) => {
        "r11"
    };
}

// The block that the call gives up may be a sampled one, if the bit of its group is set, and, at 6, its page has several of them, or
// one in its place.
macro_rules! given_up {
    (nothing) => {
        ""
    };
    (first) => {
        "mov eax, edi
        shr eax, {group_shift} + 5
        lea r10, [rip + {groups}]
        mov eax, [r10 + rax * 8]
        mov r10d, edi
        shr r10d, {group_shift}
        bt eax, r10d
        jc 6f
        7:"
    };
}

macro_rules! looked_at_closely {
    (nothing) => {
        ""
    };
    (first) => {
        "6:
        call {is_other}
        jc 7b"
    };
}

/// Sets the carry flag if the notes say that the block in `rdi` is not a sampled one. Changes `rax` and `r10`.
#[unsafe(naked)]
unsafe extern "C" fn is_other() {
    naked_asm!(
        ".cfi_startproc",
        "mov eax, edi",
        "shr eax, {page_shift}",
        "lea r10, [rip + {notes}]",
        "movzx r10d, word ptr [r10 + rax * 2]",
        "mov eax, edi",
        "shr eax, {place_shift}",
        "xor r10b, al",
        // The page's only sampled block is this one.
        "cmp r10d, {one}",
        "je 2f",
        "cmp r10d, 2 * {one}",
        "2:",
        "ret",
        ".cfi_endproc",
        page_shift = const PAGE_SHIFT,
        notes = sym NOTES,
        place_shift = const sampled_blocks::PLACE_SHIFT,
        one = const ONE,
    )
}

// Subtracts the size from the countdown and jumps, or goes on at 2 if the call may be sampled. The countdown is that of a thread
// which is alone, or in the thread-local storage of a preloaded library, or in the thread's place.
macro_rules! counted_down {
    (preloaded $size:ident $counts:ident) => {
        concat!(
            "mov rax, [rip + {alone}]
            sub rax, ",
            size!($size),
            "
            jbe 5f
            ",
            stored!($counts "mov [rip + {alone}], rax"),
            "
            jmp [rip + {reals} + {real}]
            5:
            mov rax, [rip + selfwind_countdown@GOTTPOFF]
            mov r10, fs:[rax]
            sub r10, ",
            size!($size),
            "
            jbe 2f
            ",
            stored!($counts "mov fs:[rax], r10"),
            "
            jmp [rip + {reals} + {real}]"
        )
    };
    (injected $size:ident $counts:ident) => {
        concat!(
            "mov rax, fs:0
            shr rax, 12
            and eax, {places} - 1
            shl eax, {place_shift}
            lea r10, [rip + {shared}]
            add rax, r10
            mov r10, fs:0
            cmp [rax + {owner}], r10
            jne 2f
            mov r10, [rax]
            sub r10, ",
            size!($size),
            "
            jbe 2f
            ",
            stored!($counts "mov [rax], r10"),
            "
            jmp [rip + {reals} + {real}]"
        )
    };
}

// Stores always, or according to the function's mode.
macro_rules! stored {
    (always $store:literal) => {
        $store
    };
    (by_mode $store:literal) => {
        concat!(
            "cmp byte ptr [rip + {modes} + {kind}], {counts}
            jb 2f
            ja 4f
            ",
            $store,
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
                "# {counts} {groups} {group_shift} {is_other} {modes} {alone} {shared} {owner} {places} {place_shift}",
                given_up!($gives_up),
                sized!($size),
                counted_down!($library $size $counts),
                looked_at_closely!($gives_up),
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
                "call [rip + {reals} + {real}]",
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
                groups = sym GROUPS,
                is_other = sym is_other,
                group_shift = const GROUP_SHIFT,
                modes = sym MODES,
                alone = sym REALS,
                shared = sym SHARED,
                owner = const OWNER_AT,
                places = const PLACES,
                place_shift = const PLACE_SHIFT,
                reals = sym $reals,
                real = const Reals::offset($kind),
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
                "jmp [rip + {reals} + {real}]",
                looked_at_closely!(first),
                "2:",
                platform::push!(rdi rsi rdx),
                "call {freed}",
                platform::pop!(rdx rsi rdi),
                "jmp [rip + {reals} + {real}]",
                ".cfi_endproc",
                groups = sym GROUPS,
                is_other = sym is_other,
                group_shift = const GROUP_SHIFT,
                reals = sym $reals,
                real = const Reals::offset($kind),
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
