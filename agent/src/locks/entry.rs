//! The interposed lock functions, in the build that is preloaded for `-e lock` only.
//!
//! Taking a free mutex, read lock or semaphore, or releasing a lock that nobody waits for, costs a test of one word; for a
//! write lock, an attempt replaces the call. What must never happen here: a frame of the agent below a function that need not
//! wait, a cancellation or exception that unwinds into Rust, a change of `errno`. So these functions are written in assembly,
//! and jump to the real ones. Only a call that has to wait, or for which somebody waits, is made from a frame of the
//! agent, which unwinders understand.

use core::arch::{global_asm, naked_asm};

use super::real::{self, COUNT, REALS};
use super::waited::{FACTOR, OFFSETS, SHIFT, WAITED};
use super::watched_call::{Call, Decision};
use super::{glibc_mutex, glibc_rwlock, kind};

// Entered by a jump, with the function's number in r11 and everything else as at the function's entry. Pushes `Call`,
// last field first; below it the result of `before`, and space for the one stack argument of `syscall`.
global_asm!(
    ".text",
    ".p2align 4",
    ".globl selfwind_watched_call",
    ".hidden selfwind_watched_call",
    ".type selfwind_watched_call,@function",
    "selfwind_watched_call:",
    ".cfi_startproc",
    platform::push!(rbp rbx r12 r13 r14 r15 r9 r8 rcx rdx rsi rdi r11),
    "sub rsp, 16",
    ".cfi_adjust_cfa_offset 16",
    "cmp r11, {first_futex}",
    "jb 2f",
    "mov rax, [rsp + 128]",
    "mov [rsp], rax",
    "2:",
    "lea rdi, [rsp + 16]",
    "call {before}",
    "mov [rsp + 8], rax",
    "test rdx, rdx",
    "jnz 3f",
    "mov r11, [rsp + 16]",
    "mov rdi, [rsp + 24]",
    "mov rsi, [rsp + 32]",
    "mov rdx, [rsp + 40]",
    "mov rcx, [rsp + 48]",
    "mov r8, [rsp + 56]",
    "mov r9, [rsp + 64]",
    "lea rax, [rip + {reals}]",
    "call [rax + 8 * r11]",
    "mov rsi, [rsp + 8]",
    "mov [rsp + 8], rax",
    "lea rdi, [rsp + 16]",
    "call {after}",
    "3:",
    "mov rax, [rsp + 8]",
    "add rsp, 120",
    ".cfi_adjust_cfa_offset -120",
    "ret",
    ".cfi_endproc",
    ".size selfwind_watched_call, . - selfwind_watched_call",
    first_futex = const kind::FUTEX_WAIT,
    before = sym before,
    after = sym after,
    reals = sym REALS,
);

macro_rules! entry {
    ($name:ident, $($line:expr),*; $($operand:ident = $kind:tt $value:expr),*) => {
        /// As the C library says.
        ///
        /// # Safety
        /// As the C library says.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name() {
            naked_asm!(".cfi_startproc", $($line),*, ".cfi_endproc", $($operand = $kind $value),*)
        }
    };
}

// Examines a mutex of glibc: its lock word, 0 if free, and its kind, with the bits of robust and priority mutexes. For
// those, trylock is no safe substitute: at a robust mutex that is not recoverable it leaves the lock taken (glibc 2.36,
// nptl/pthread_mutex_trylock.c).
macro_rules! mutex {
    ($number:literal, $name:ident, $attempt:expr, $busy:expr) => {
        entry!(
            $name,
            "mov eax, [rip + {foreign}]",
            "or eax, [rdi]",
            "jnz 2f",
            "jmp [rip + {reals} + 8 * {number}]",
            "2:",
            "test byte ptr [rip + {foreign}], 1",
            "jnz 3f",
            "test dword ptr [rdi + {kind}], {special}",
            "jnz 4f",
            "3:",
            "push rdi",
            ".cfi_adjust_cfa_offset 8",
            "call [rip + {reals} + 8 * {attempt}]",
            "pop rdi",
            ".cfi_adjust_cfa_offset -8",
            "cmp eax, {busy}",
            "je 4f",
            "ret",
            "4:",
            "mov r11d, {number}",
            "jmp selfwind_watched_call";
            reals = sym REALS, foreign = sym glibc_mutex::IS_FOREIGN, kind = const glibc_mutex::KIND,
            special = const glibc_mutex::SPECIAL, attempt = const $attempt, busy = const $busy,
            number = const $number
        );
    };
}

// Calls trylock first: if it succeeds, there was no wait.
macro_rules! attempting {
    ($number:literal, $name:ident, $attempt:expr, $busy:expr $(, $before:literal)*; $($operand:ident = $kind:tt $value:expr),*) => {
        entry!(
            $name,
            $($before,)*
            "push rdi",
            ".cfi_adjust_cfa_offset 8",
            "call [rip + {reals} + 8 * {attempt}]",
            "pop rdi",
            ".cfi_adjust_cfa_offset -8",
            "cmp eax, {busy}",
            "je 2f",
            "ret",
            "2:",
            "mov r11d, {number}",
            "jmp selfwind_watched_call";
            reals = sym REALS, attempt = const $attempt, busy = const $busy, number = const $number
            $(, $operand = $kind $value)*
        );
    };
}

// Examines the first word of a rwlock of glibc, which says whether a reader would wait: an attempt must read that word
// before it changes it, while a call only adds to it.
macro_rules! reading {
    ($number:literal, $name:ident) => {
        attempting!(
            $number, $name, kind::TRY_READ, kind::BUSY,
            "mov eax, [rip + {foreign}]",
            "or eax, [rdi]",
            "test al, {written}",
            "jnz 3f",
            "jmp [rip + {reals} + 8 * {number}]",
            "3:";
            foreign = sym glibc_rwlock::IS_FOREIGN, written = const glibc_rwlock::WRITTEN
        );
    };
}

// Tests whether the semaphore, whose value is its first word, must be waited for. An attempt would not be a
// cancellation point.
macro_rules! looking {
    ($number:literal, $name:ident) => {
        entry!(
            $name,
            "cmp dword ptr [rdi], 0",
            "jle 2f",
            "jmp [rip + {reals} + 8 * {number}]",
            "2:",
            "mov r11d, {number}",
            "jmp selfwind_watched_call";
            reals = sym REALS, number = const $number
        );
    };
}

// Usually waits, or `before` makes the attempt.
macro_rules! waiting {
    ($number:literal, $name:ident) => {
        entry!($name, "mov r11d, {number}", "jmp selfwind_watched_call"; number = const $number);
    };
}

// Tests whether anything with the same table entry is being waited for.
macro_rules! releasing {
    ($number:literal, $name:ident) => {
        entry!(
            $name,
            "imul rax, rdi, {factor}",
            "shr rax, {shift}",
            "and eax, {offsets}",
            "lea r10, [rip + {waited}]",
            "cmp qword ptr [r10 + rax], 0",
            "jne 2f",
            "jmp [rip + {reals} + 8 * {number}]",
            "2:",
            "mov r11d, {number}",
            "jmp selfwind_watched_call";
            factor = const FACTOR, shift = const SHIFT, offsets = const OFFSETS, waited = sym WAITED,
            reals = sym REALS, number = const $number
        );
    };
}

macro_rules! functions {
    (
        mutexes { $($mutex:literal $locked:ident $attempt_at:ident $has:ident;)* }
        reading { $($reading:literal $read:ident;)* }
        attempting { $($attempting:literal $attempted:ident $attempt:ident $busy:ident;)* }
        looking { $($looking:literal $looked:ident;)* }
        waiting { $($waiting:literal $waited:ident;)* }
        releasing { $($releasing:literal $released:ident;)* }
    ) => {
        $(mutex!($mutex, $locked, kind::$attempt_at, kind::$has);)*
        $(reading!($reading, $read);)*
        $(attempting!($attempting, $attempted, kind::$attempt, kind::$busy;);)*
        $(looking!($looking, $looked);)*
        $(waiting!($waiting, $waited);)*
        $(releasing!($releasing, $released);)*

        /// Address of the interposing function with this number.
        fn own(number: usize) -> u64 {
            let entry: unsafe extern "C" fn() = match number {
                $($mutex => $locked,)*
                $($reading => $read,)*
                $($attempting => $attempted,)*
                $($looking => $looked,)*
                $($waiting => $waited,)*
                $($releasing => $released,)*
                _ => futex,
            };
            entry as usize as u64
        }
    };
}

functions! {
    mutexes {
        0 pthread_mutex_lock TRY_MUTEX BUSY;
        24 mtx_lock C11_TRY C11_BUSY;
    }
    reading {
        5 pthread_rwlock_rdlock;
    }
    attempting {
        9 pthread_rwlock_wrlock TRY_WRITE BUSY;
    }
    looking {
        19 sem_wait;
        20 sem_timedwait;
        21 sem_clockwait;
    }
    waiting {
        2 pthread_mutex_timedlock;
        3 pthread_mutex_clocklock;
        7 pthread_rwlock_timedrdlock;
        8 pthread_rwlock_clockrdlock;
        11 pthread_rwlock_timedwrlock;
        12 pthread_rwlock_clockwrlock;
        14 pthread_cond_wait;
        15 pthread_cond_timedwait;
        16 pthread_cond_clockwait;
        23 pthread_barrier_wait;
        26 mtx_timedlock;
        28 cnd_wait;
        29 cnd_timedwait;
    }
    releasing {
        4 pthread_mutex_unlock;
        13 pthread_rwlock_unlock;
        17 pthread_cond_signal;
        18 pthread_cond_broadcast;
        22 sem_post;
        27 mtx_unlock;
        30 cnd_signal;
        31 cnd_broadcast;
    }
}

/// Waiting operations of futex(2), as a bit mask: FUTEX_WAIT, LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2.
const WAITS: u32 = 1 << 0 | 1 << 6 | 1 << 9 | 1 << 11 | 1 << 13;
/// Waking operations: FUTEX_WAKE, REQUEUE, CMP_REQUEUE, WAKE_OP, UNLOCK_PI, WAKE_BITSET, CMP_REQUEUE_PI.
const WAKES: u32 = 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 10 | 1 << 12;

/// `syscall` with the number of futex(2), through which locks of other languages wait. Entered by a jump, as if called.
///
/// # Safety
/// As futex(2) says.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn futex() {
    naked_asm!(
        ".cfi_startproc",
        // Ignore FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME.
        "mov eax, edx",
        "and eax, 0x7f",
        "cmp eax, 31",
        "ja 3f",
        "mov r11d, {waits}",
        "bt r11d, eax",
        "jc 2f",
        "mov r11d, {wakes}",
        "bt r11d, eax",
        "jnc 3f",
        "imul rax, rsi, {factor}",
        "shr rax, {shift}",
        "and eax, {offsets}",
        "lea r10, [rip + {waited}]",
        "cmp qword ptr [r10 + rax], 0",
        "je 3f",
        "mov r11d, {wake}",
        "jmp selfwind_watched_call",
        "2:",
        "mov r11d, {wait}",
        "jmp selfwind_watched_call",
        "3:",
        "jmp [rip + {reals} + 8 * {wait}]",
        ".cfi_endproc",
        waits = const WAITS,
        wakes = const WAKES,
        factor = const FACTOR,
        shift = const SHIFT,
        offsets = const OFFSETS,
        waited = sym WAITED,
        reals = sym REALS,
        wait = const kind::FUTEX_WAIT,
        wake = const kind::FUTEX_WAKE,
    )
}

const _: () = assert!(kind::FUTEX_WAIT + 1 == kind::FUTEX_WAKE && kind::FUTEX_WAKE + 1 == COUNT);

/// Hands a call over before it is made.
unsafe extern "C" fn before(call: &Call) -> Decision {
    super::before(call, entry_of)
}

/// Hands it over after it was made.
unsafe extern "C" fn after(call: &Call, word: u64) {
    super::after(call, entry_of, word);
}

/// The address of the function that the program called, or of one with the same unwind information.
fn entry_of(call: &Call) -> u64 {
    let number = call.kind().0;
    real::with_unwind_information(number).unwrap_or_else(|| own(number))
}
