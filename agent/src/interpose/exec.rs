//! exec and posix_spawn.
//!
//! A running ITIMER_PROF survives an exec and its signal would kill the new image, so it is stopped before, and
//! restarted if the exec fails. The kernel deletes per-thread timers, with their pending signals. Execs inside the C
//! library are not seen here; with the default source nothing depends on seeing them.

use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use super::real::{call_real, fail, is_of_c_library, own_recording, real_functions};
use crate::kernel::{self, Errno};
use crate::lock::Masked;
use crate::preload::{self, Start, Strings};
use crate::process;
use crate::sources::program_timer;
use crate::symbols;
use crate::threads;
use handler::recording::{self, Clock};
use platform::activity::Active;
use platform::sys;

real_functions! {
    EXECVE = c"execve";
    EXECVPE = c"execvpe";
    FEXECVE = c"fexecve";
    EXECVEAT = c"execveat";
    SPAWN = c"posix_spawn";
    SPAWNP = c"posix_spawnp";
}

/// Whether no other library interposes `execve`.
static IS_OF_C_LIBRARY: AtomicBool = AtomicBool::new(false);

/// Looks whose functions the real ones are, once they are found.
pub(super) fn look_at_real() {
    IS_OF_C_LIBRARY.store(is_of_c_library(&EXECVE), Ordering::Relaxed);
}

/// The program that an exec is given.
#[derive(Clone, Copy)]
struct Program {
    /// Null if it is not known.
    path: *const c_char,
    place: Place,
}

/// Where a program is.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    AtPath,
    /// Searched for as in execvp(3) if its name has no slash.
    InSearchPath,
    /// Relative to a directory that a descriptor stands for, or the file of a descriptor.
    AtDescriptor,
}

impl Program {
    /// The path as it was given; empty if it is not known.
    ///
    /// # Safety
    /// The path must be null or a live string.
    unsafe fn path<'a>(self) -> &'a CStr {
        // SAFETY: the caller's promise.
        if self.path.is_null() { c"" } else { unsafe { CStr::from_ptr(self.path) } }
    }

    /// The path at which the program can be looked at; empty if there is none.
    ///
    /// # Safety
    /// The path must be null or a live string.
    unsafe fn own_path<'a>(self) -> &'a CStr {
        // SAFETY: the caller's promise.
        let path = unsafe { self.path() };
        if self.place == Place::AtDescriptor && !path.to_bytes().starts_with(b"/") { c"" } else { path }
    }

    /// Whether the exec is about to fail for want of the file: many programs try the directories of PATH this way. Another
    /// library that interposes exec may execute another file.
    fn is_missing(self) -> bool {
        let is_known = self.place == Place::AtPath && IS_OF_C_LIBRARY.load(Ordering::Relaxed);
        let Some(_active) = Active::enter().filter(|_| is_known) else { return false };
        // A bad address is for the kernel to refuse. A timer of the process would survive the exec if somebody created the file
        // meanwhile.
        match kernel::find(self.path) {
            Err(Errno(libc::ENOENT | libc::ENOTDIR)) => {
                !recording::current().is_some_and(|recording| recording.is_clocked_by(Clock::ProcessTimer))
            }
            result => result == Err(Errno(libc::EFAULT)),
        }
    }
}

/// Calls `start` with the environment for a program that was given `given`.
///
/// # Safety
/// The path must be null or a string, `given` null or an environment.
unsafe fn with_environment(program: Program, given: Strings, start: &dyn Start) -> c_long {
    let is_searched = program.place == Place::InSearchPath;
    // SAFETY: the caller promises a valid path and environment.
    unsafe { preload::with_environment(program.own_path(), is_searched, given, start) }
}

/// Prepares for an exec of `program`, calls `exec` with the environment, and undoes the preparation if it fails.
///
/// # Safety
/// As for [`with_environment`].
unsafe fn around(program: Program, given: Strings, exec: &dyn Start) -> c_long {
    if program.is_missing() {
        return exec.start(given);
    }
    // SAFETY: the caller's promise.
    unsafe { with_environment(program, given, &|environment| prepared(program, || exec.start(environment))) }
}

/// Makes the exec between its preparation and, if it fails, the end of that.
///
/// # Safety
/// The path must be null or a string.
unsafe fn prepared(program: Program, exec: impl FnOnce() -> c_long) -> c_long {
    let prepared = Active::enter().and_then(|_active| {
        let Some(recording) = own_recording() else {
            // A child of vfork(2), in its parent's memory.
            threads::tell_unsampled_exec(sys::process_id());
            return None;
        };
        // SAFETY: the caller's promise.
        let path = unsafe { program.path() };
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
        call_real!(
            EXECVE as fn(*const c_char, Strings, Strings) -> c_int,
            (path, arguments, environment),
            else fail(libc::ENOSYS)
        )
        .into()
    };
    // SAFETY: the program's arguments, valid by this function's contract.
    unsafe { around(Program { path, place: Place::AtPath }, environment, &exec) as c_int }
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
        call_real!(
            EXECVPE as fn(*const c_char, Strings, Strings) -> c_int,
            (file, arguments, environment),
            else fail(libc::ENOSYS)
        )
        .into()
    };
    // SAFETY: the program's arguments, valid by this function's contract.
    unsafe { around(Program { path: file, place: Place::InSearchPath }, environment, &exec) as c_int }
}

/// POSIX `fexecve`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fexecve(file: c_int, arguments: Strings, environment: Strings) -> c_int {
    let exec = |environment| {
        call_real!(
            FEXECVE as fn(c_int, Strings, Strings) -> c_int,
            (file, arguments, environment),
            else fail(libc::ENOSYS)
        )
        .into()
    };
    // SAFETY: the program's arguments, valid by this function's contract.
    unsafe {
        around(Program { path: core::ptr::null(), place: Place::AtDescriptor }, environment, &exec) as c_int
    }
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
        call_real!(
            EXECVEAT as fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int,
            (directory, path, arguments, environment, flags),
            else fail(libc::ENOSYS)
        )
        .into()
    };
    // SAFETY: the program's arguments, valid by this function's contract.
    unsafe { around(Program { path, place: Place::AtDescriptor }, environment, &exec) as c_int }
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
        with_environment(Program { path, place: Place::AtPath }, environment, &spawn) as c_int
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
        with_environment(Program { path: file, place: Place::InSearchPath }, environment, &spawn) as c_int
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
                platform::push!(r9 r8 rcx rdx rsi),
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

/// An `execve` made through `syscall`, with this path and environment; an `execveat` if `is_at_descriptor`.
///
/// # Safety
/// As for the system call.
pub(super) unsafe fn bare(
    path: usize,
    is_at_descriptor: bool,
    environment: usize,
    real: impl Fn(usize) -> c_long,
) -> c_long {
    let place = if is_at_descriptor { Place::AtDescriptor } else { Place::AtPath };
    let program = Program { path: path as *const c_char, place };
    // SAFETY: the program's arguments, valid by this function's contract.
    unsafe { around(program, environment as Strings, &|environment| real(environment as usize)) }
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
