//! `__register_frame` and `__deregister_frame` of libgcc and of LLVM's libunwind.
//!
//! The library with these functions may be loaded after the program and unloaded again, so it is looked up at each
//! call; compilers make one call for much code.

use core::ffi::{CStr, c_void};

use handler::generated;
use platform::activity::Active;

use super::real::own_recording;
use crate::generated::Registration;
use crate::modules;
use crate::symbols::Real;

/// `__register_frame`: with libgcc, entries at `begin` that end with a zero length; with LLVM's libunwind, one FDE.
///
/// # Safety
/// As those libraries require.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __register_frame(begin: *const c_void) {
    // SAFETY: the caller fulfils the real function's contract.
    unsafe { pass_on(c"__register_frame", begin) };
    if own_recording().is_none() {
        return;
    }
    if let Some(_active) = Active::enter()
        && let Some(registration) = Registration::read(begin as u64)
    {
        modules::change_generated(|code| code.add(registration));
    }
}

/// `__deregister_frame`: removes the registration at `begin`.
///
/// # Safety
/// As those libraries require.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __deregister_frame(begin: *const c_void) {
    if own_recording().is_some() {
        match Active::enter() {
            Some(_active) => modules::change_generated(|code| code.remove(begin as u64)),
            // Even taking the lock makes system calls, which the filter may forbid.
            None => generated::set_outdated(),
        }
    }
    // SAFETY: the caller fulfils the real function's contract.
    unsafe { pass_on(c"__deregister_frame", begin) };
}

/// Calls the real function with this name, if there is one.
///
/// # Safety
/// As the real function requires.
unsafe fn pass_on(name: &'static CStr, begin: *const c_void) {
    if let Some(address) = Real::new(name).address() {
        // SAFETY: a function with this name has this type; the argument is the program's.
        unsafe {
            core::mem::transmute::<usize, unsafe extern "C" fn(*const c_void)>(address)(begin);
        }
    }
}
