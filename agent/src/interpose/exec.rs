//! exec and posix_spawn.
//!
//! A running ITIMER_PROF survives an exec and its signal would kill the new image, so it is stopped before, and
//! restarted if the exec fails. The kernel deletes per-thread timers, with their pending signals. Execs inside the C
//! library are not seen here; with the default source nothing depends on seeing them.

use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};

use super::real::{call_real, fail, own_recording, real_functions};
use crate::lock::Masked;
use crate::preload::{self, Strings};
use crate::process;
use crate::sources::program_timer;
use crate::symbols;
use crate::threads;
use handler::activity::Active;
use handler::sys;

real_functions! {
    EXECVE = c"execve";
    EXECVPE = c"execvpe";
    FEXECVE = c"fexecve";
    EXECVEAT = c"execveat";
    SPAWN = c"posix_spawn";
    SPAWNP = c"posix_spawnp";
}

/// Calls `exec` with the environment for an exec of `path` that was given `given`; `search` as for execvp(3).
///
/// # Safety
/// `path` must be null or a string, `given` null or an environment.
unsafe fn with_environment(
    path: *const c_char,
    search: bool,
    given: Strings,
    go: &dyn Fn(Strings) -> c_long,
) -> c_long {
    // SAFETY: the caller promises a valid path and environment.
    unsafe {
        let path = if path.is_null() { c"" } else { CStr::from_ptr(path) };
        preload::with_environment(path, search, given, go)
    }
}

/// Prepares for an exec of `path` (an address, 0 if unknown), makes the exec, and undoes the preparation if it fails.
pub(super) fn around(path: usize, exec: impl FnOnce() -> c_long) -> c_long {
    let prepared = Active::enter().and_then(|_active| {
        let Some(recording) = own_recording() else {
            // A child of vfork(2), in its parent's memory.
            threads::tell_unsampled_exec(sys::process_id());
            return None;
        };
        // SAFETY: a string that the program passed to exec.
        let path = if path == 0 { c"" } else { unsafe { CStr::from_ptr(path as *const c_char) } };
        let hidden = process::before_exec(recording, path.to_bytes(), program_timer::get);
        Some((recording, hidden))
    });
    let result = exec();
    if let (Some((recording, hidden)), Some(_active)) = (prepared, Active::enter()) {
        process::after_failed_exec(recording, hidden);
    }
    result
}

/// POSIX `execve`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    let exec = |environment| {
        around(path as usize, || {
            call_real!(
                EXECVE as fn(*const c_char, Strings, Strings) -> c_int,
                (path, arguments, environment),
                else fail(libc::ENOSYS)
            )
            .into()
        })
    };
    // SAFETY: the program's arguments, valid by this function's contract.
    unsafe { with_environment(path, false, environment, &exec) as c_int }
}

/// POSIX `execv`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the same contract; the environment is the program's.
    unsafe { execve(path, arguments, symbols::environment_now()) }
}

/// POSIX `execvp`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the same contract; the environment is the program's.
    unsafe { execvpe(file, arguments, symbols::environment_now()) }
}

/// GNU `execvpe`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execvpe(
    file: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    let exec = |environment| {
        around(file as usize, || {
            call_real!(
                EXECVPE as fn(*const c_char, Strings, Strings) -> c_int,
                (file, arguments, environment),
                else fail(libc::ENOSYS)
            )
            .into()
        })
    };
    // SAFETY: the program's arguments, valid by this function's contract.
    unsafe { with_environment(file, true, environment, &exec) as c_int }
}

/// POSIX `fexecve`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fexecve(file: c_int, arguments: Strings, environment: Strings) -> c_int {
    let exec = |environment| {
        around(0, || {
            call_real!(
                FEXECVE as fn(c_int, Strings, Strings) -> c_int,
                (file, arguments, environment),
                else fail(libc::ENOSYS)
            )
            .into()
        })
    };
    // SAFETY: the program's arguments, valid by this function's contract.
    unsafe { with_environment(core::ptr::null(), false, environment, &exec) as c_int }
}

/// Linux `execveat`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execveat(
    directory: c_int,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    let exec = |environment| {
        around(path as usize, || {
            call_real!(
                EXECVEAT as fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int,
                (directory, path, arguments, environment, flags),
                else fail(libc::ENOSYS)
            )
            .into()
        })
    };
    // SAFETY: the program's arguments, valid by this function's contract.
    unsafe { with_environment(core::ptr::null(), false, environment, &exec) as c_int }
}

/// The arguments of `posix_spawn` and `posix_spawnp`.
type Spawn = unsafe extern "C" fn(
    *mut libc::pid_t,
    *const c_char,
    *const c_void,
    *const c_void,
    Strings,
    Strings,
) -> c_int;

/// Notes the process that posix_spawn has started with this result, and passes the result on.
///
/// # Safety
/// `pid` must be null or, after success, the place of its number.
unsafe fn spawned(pid: *const libc::pid_t, result: c_int) -> c_int {
    if result == 0 && !pid.is_null() {
        // SAFETY: the caller's promise.
        threads::tell_unsampled_exec(unsafe { *pid } as u32);
    }
    result
}

/// POSIX `posix_spawn`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn posix_spawn(
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    let Some(real) = SPAWN.address() else { return libc::ENOSYS };
    // SAFETY: the C library's function of this type; the program's own arguments.
    unsafe {
        let real = core::mem::transmute::<usize, Spawn>(real);
        let spawn =
            |environment| spawned(pid, real(pid, path, actions, attributes, arguments, environment)).into();
        with_environment(path, false, environment, &spawn) as c_int
    }
}

/// POSIX `posix_spawnp`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn posix_spawnp(
    pid: *mut libc::pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    let Some(real) = SPAWNP.address() else { return libc::ENOSYS };
    // SAFETY: the C library's function of this type; the program's own arguments.
    unsafe {
        let real = core::mem::transmute::<usize, Spawn>(real);
        let spawn =
            |environment| spawned(pid, real(pid, file, actions, attributes, arguments, environment)).into();
        with_environment(file, true, environment, &spawn) as c_int
    }
}

/// Defines a variadic function. The arguments after the path are in five registers and on the stack above the return
/// address; both are passed on as arrays.
macro_rules! listed {
    ($(#[$attribute:meta])* $name:ident => $gathered:ident) => {
        $(#[$attribute])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name(path: *const c_char) -> c_int {
            core::arch::naked_asm!(
                ".cfi_startproc",
                // The register arguments as an array; then the address of the stack arguments.
                "lea rax, [rsp + 8]",
                handler::push!(r9 r8 rcx rdx rsi),
                "mov rsi, rsp",
                "mov rdx, rax",
                "call {gathered}",
                "add rsp, 40",
                ".cfi_adjust_cfa_offset -40",
                "ret",
                ".cfi_endproc",
                gathered = sym $gathered,
            )
        }
    };
}

listed! {
    /// POSIX `execl`.
    ///
    /// # Safety
    /// As POSIX says.
    execl => gathered_execl
}
listed! {
    /// POSIX `execlp`.
    ///
    /// # Safety
    /// As POSIX says.
    execlp => gathered_execlp
}
listed! {
    /// POSIX `execle`.
    ///
    /// # Safety
    /// As POSIX says.
    execle => gathered_execle
}

/// Number of register arguments after the first one.
const IN_REGISTERS: usize = 5;

/// Argument `index` after the path.
///
/// # Safety
/// `registers` and `stack` must come from `listed`, and the caller must have passed more than `index` arguments.
unsafe fn word(registers: Strings, stack: Strings, index: usize) -> *const c_char {
    // SAFETY: the caller fulfils this function's contract.
    unsafe { if index < IN_REGISTERS { *registers.add(index) } else { *stack.add(index - IN_REGISTERS) } }
}

/// An `execve` or `execveat` made through `syscall`, with this path and environment.
///
/// # Safety
/// As for the system call.
pub(super) unsafe fn bare(path: usize, environment: usize, real: impl Fn(usize) -> c_long) -> c_long {
    let exec = |environment: Strings| around(path, || real(environment as usize));
    // SAFETY: the program's arguments, valid by this function's contract.
    unsafe { with_environment(path as *const c_char, false, environment as Strings, &exec) }
}

/// Calls `exec` with the arguments as one null-terminated array, and with the argument after the null.
///
/// # Safety
/// As for [`word`]; the arguments must end with null, and one more word must be readable.
unsafe fn gathered(
    registers: Strings,
    stack: Strings,
    exec: impl FnOnce(Strings, *const c_char) -> c_int,
) -> c_int {
    let masked = Masked::new();
    let mut words = Vec::new();
    loop {
        // SAFETY: not beyond the null, which is the caller's last argument.
        let next = unsafe { word(registers, stack, words.len()) };
        words.push(next);
        if next.is_null() {
            break;
        }
    }
    // SAFETY: the caller promises one more readable word: an argument, or part of the calling frame.
    let after = unsafe { word(registers, stack, words.len()) };
    drop(masked);
    let result = exec(words.as_ptr(), after);
    let _masked = Masked::new();
    drop(words);
    result
}

unsafe extern "C" fn gathered_execl(path: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: `listed` passes the caller's arguments.
    unsafe { gathered(registers, stack, |arguments, _| execv(path, arguments)) }
}

unsafe extern "C" fn gathered_execlp(file: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: `listed` passes the caller's arguments.
    unsafe { gathered(registers, stack, |arguments, _| execvp(file, arguments)) }
}

unsafe extern "C" fn gathered_execle(path: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: `listed` passes the caller's arguments; the environment follows the null.
    unsafe { gathered(registers, stack, |arguments, after| execve(path, arguments, after.cast())) }
}
