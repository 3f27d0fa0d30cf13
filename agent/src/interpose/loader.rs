//! Loading and unloading of libraries.
//!
//! The real `dlopen` depends on its caller: a library name without a slash is searched along the caller's RUNPATH. So
//! for such names, and for `dlsym`, the wrapper jumps to the real function, which then returns directly to the program.

use core::ffi::{CStr, c_char, c_int, c_void};

use super::real::{call_real, own_recording, real_functions};
use crate::module_news;
use handler::snapshot;

real_functions! {
    DLOPEN = c"dlopen";
    DLCLOSE = c"dlclose";
    DLSYM = c"dlsym";
    GLIBC_VERSION = c"gnu_get_libc_version";
}

/// POSIX `dlopen`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        ".cfi_startproc",
        platform::push!(rdi rsi),
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {plan}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        platform::pop!(rsi rdi),
        "jmp rax",
        ".cfi_endproc",
        plan = sym plan_dlopen,
    )
}

/// The address that `dlopen` jumps to for `path`.
unsafe extern "C" fn plan_dlopen(path: *const c_char) -> usize {
    let searched = !path.is_null() && {
        // SAFETY: a string that the program passed to `dlopen`.
        let name = unsafe { CStr::from_ptr(path) }.to_bytes();
        !name.contains(&b'/') || name.contains(&b'$')
    };
    if !path.is_null() {
        module_news::note_load();
    }
    match DLOPEN.address() {
        Some(real) if searched && GLIBC_VERSION.address().is_some() => {
            // The new objects are registered by the next interposed call, most often `dlsym`.
            snapshot::set_stale();
            real
        }
        _ => opened as unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void as usize,
    }
}

unsafe extern "C" fn opened(path: *const c_char, flags: c_int) -> *mut c_void {
    let result = call_real!(
        DLOPEN as fn(*const c_char, c_int) -> *mut c_void,
        (path, flags),
        else core::ptr::null_mut()
    );
    if !path.is_null() {
        snapshot::set_stale();
        refresh();
    }
    result
}

/// POSIX `dlclose`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    let result = call_real!(DLCLOSE as fn(*mut c_void) -> c_int, (handle), else -1);
    snapshot::set_stale();
    refresh();
    result
}

/// POSIX `dlsym`. Interposed only because it usually follows a `dlopen` whose return was not seen.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        ".cfi_startproc",
        platform::push!(rdi rsi),
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {plan}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        platform::pop!(rsi rdi),
        "jmp rax",
        ".cfi_endproc",
        plan = sym plan_dlsym,
    )
}

unsafe extern "C" fn plan_dlsym() -> usize {
    refresh();
    DLSYM.address().unwrap_or(nothing as unsafe extern "C" fn() -> usize as usize)
}

/// Substitute for a missing `dlsym`: finds nothing.
unsafe extern "C" fn nothing() -> usize {
    0
}

/// Registers changes of the loaded objects, if there may be any.
pub(super) fn refresh() {
    if let Some(recording) = own_recording() {
        module_news::refresh(recording);
    }
}
