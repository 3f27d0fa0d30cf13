//! The real lock functions of the program's C library.

use core::arch::naked_asm;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::{glibc_mutex, glibc_rwlock, kind};
use crate::symbols::{self, Real};

/// Number of functions.
pub(super) const COUNT: usize = 34;

macro_rules! pointers {
    ($($number:literal)*) => { [$(AtomicPtr::new(find_first::<$number> as *mut ())),*] };
}

/// The real functions, or the stubs that look them up; indexed by the numbers in [`kind`].
pub(super) static REALS: [AtomicPtr<()>; COUNT] =
    pointers![0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33];

/// Stub for function `NUMBER`: looks up the real one and jumps to it.
#[unsafe(naked)]
unsafe extern "C" fn find_first<const NUMBER: usize>() {
    naked_asm!(
        ".cfi_startproc",
        platform::push!(rdi rsi rdx rcx r8 r9),
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "mov edi, {number}",
        "call {find}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        platform::pop!(r9 r8 rcx rdx rsi rdi),
        "jmp rax",
        ".cfi_endproc",
        number = const NUMBER,
        find = sym find,
    )
}

macro_rules! reals {
    ($($name:literal),* $(,)?) => { [$(Real::new($name)),*] };
}

static REAL: [Real; COUNT] = reals![
    c"pthread_mutex_lock",
    c"pthread_mutex_trylock",
    c"pthread_mutex_timedlock",
    c"pthread_mutex_clocklock",
    c"pthread_mutex_unlock",
    c"pthread_rwlock_rdlock",
    c"pthread_rwlock_tryrdlock",
    c"pthread_rwlock_timedrdlock",
    c"pthread_rwlock_clockrdlock",
    c"pthread_rwlock_wrlock",
    c"pthread_rwlock_trywrlock",
    c"pthread_rwlock_timedwrlock",
    c"pthread_rwlock_clockwrlock",
    c"pthread_rwlock_unlock",
    c"pthread_cond_wait",
    c"pthread_cond_timedwait",
    c"pthread_cond_clockwait",
    c"pthread_cond_signal",
    c"pthread_cond_broadcast",
    c"sem_wait",
    c"sem_timedwait",
    c"sem_clockwait",
    c"sem_post",
    c"pthread_barrier_wait",
    c"mtx_lock",
    c"mtx_trylock",
    c"mtx_timedlock",
    c"mtx_unlock",
    c"cnd_wait",
    c"cnd_timedwait",
    c"cnd_signal",
    c"cnd_broadcast",
    // Once for waits, once for wake-ups.
    c"syscall",
    c"syscall",
];

/// Exported by glibc only.
static VERSION: Real = Real::new(c"gnu_get_libc_version");

/// Looks up all of them in one pass. Missing ones are looked up again when they are called: their library may be loaded
/// by then.
pub(super) fn find_all() {
    let all: [&Real; COUNT] = core::array::from_fn(|number| &REAL[number]);
    symbols::resolve(&all);
    symbols::resolve(&[&VERSION]);
    if VERSION.known().is_some() {
        glibc_mutex::is_known();
    }
    if glibc().is_some_and(|version| version >= (2, 30)) {
        glibc_rwlock::is_known();
    }
    for (number, (pointer, real)) in REALS.iter().zip(&REAL).enumerate() {
        if let Some(address) = real.known() {
            pointer.store(usable(number, address) as *mut (), Ordering::Relaxed);
        }
    }
}

/// Looks up one of them at its first call.
unsafe extern "C" fn find(number: usize) -> usize {
    let Some(address) = REAL.get(number).and_then(Real::address) else {
        return if kind::is_attempt(number) {
            busy(number)
        } else {
            missing as extern "C" fn() -> i32 as usize
        };
    };
    let address = usable(number, address);
    if let Some(pointer) = REALS.get(number) {
        pointer.store(address as *mut (), Ordering::Relaxed);
    }
    address
}

/// The real function at `address`, unless it has a known defect: before 2.30, attempts at glibc's rwlocks could leave
/// other threads asleep forever (glibc bug 23844). Then a substitute is used that always reports the lock as taken.
fn usable(number: usize, address: usize) -> usize {
    let is_of_rwlock = number == kind::TRY_READ || number == kind::TRY_WRITE;
    if is_of_rwlock && glibc().is_some_and(|version| version < (2, 30)) { busy(number) } else { address }
}

/// Start of a function; 0 if it was not found. musl has no unwind information, so stacks begin in the agent's entry.
pub(super) fn with_unwind_information(number: usize) -> Option<u64> {
    VERSION.known()?;
    REAL.get(number)?.known().map(|address| address as u64)
}

/// glibc's version.
fn glibc() -> Option<(u32, u32)> {
    type Version = unsafe extern "C" fn() -> *const core::ffi::c_char;
    let address = VERSION.known()?;
    // SAFETY: glibc's function of this type; its result is a static string.
    let text = unsafe { core::ffi::CStr::from_ptr(core::mem::transmute::<usize, Version>(address)()) };
    let mut parts = text.to_bytes().split(|byte| *byte == b'.').map(handler::decimal::number);
    let mut next = || parts.next().flatten().and_then(|part| u32::try_from(part).ok());
    Some((next()?, next()?))
}

/// An attempt that always fails.
fn busy(number: usize) -> usize {
    extern "C" fn pthread() -> i32 {
        kind::BUSY
    }
    extern "C" fn c11() -> i32 {
        kind::C11_BUSY
    }
    (if number == kind::C11_TRY { c11 } else { pthread }) as extern "C" fn() -> i32 as usize
}

/// Substitute for a function that does not exist.
extern "C" fn missing() -> i32 {
    0
}

/// The address to call for a function.
pub(super) fn address(number: usize) -> Option<usize> {
    Some(REALS.get(number)?.load(Ordering::Relaxed) as usize)
}
