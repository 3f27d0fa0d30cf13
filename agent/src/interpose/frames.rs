//! Registration of call frame information for generated code, with libgcc or LLVM's libunwind.
//!
//! The library that has these functions may be loaded later than the program, and unloaded: so it is looked for at each
//! call, which a compiler makes once for much code.

use core::ffi::{CStr, c_void};

use handler::activity::Active;
use handler::generated;

use super::real::own_recording;
use crate::generated::Part;
use crate::modules;
use crate::symbols::Real;

/// libgcc's `__register_frame`: entries at `begin` that a zero length ends, or, of LLVM's libunwind, one FDE.
///
/// # Safety
/// As they say.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __register_frame(begin: *const c_void) {
    // SAFETY: the caller's promise.
    unsafe { pass_on(c"__register_frame", begin) };
    if own_recording().is_none() {
        return;
    }
    if let Some(_active) = Active::enter()
        && let Some(part) = Part::read(begin as u64)
    {
        modules::change_generated(|code| code.add(part));
    }
}

/// libgcc's `__deregister_frame`: takes back what was registered at `begin`.
///
/// # Safety
/// As they say.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __deregister_frame(begin: *const c_void) {
    if own_recording().is_some() {
        match Active::enter() {
            Some(_active) => modules::change_generated(|code| code.remove(begin as u64)),
            // Even the lock takes system calls.
            None => generated::set_outdated(),
        }
    }
    // SAFETY: the caller's promise.
    unsafe { pass_on(c"__deregister_frame", begin) };
}

/// Calls the real function of this name, if there is one.
///
/// # Safety
/// As that says.
unsafe fn pass_on(name: &'static CStr, begin: *const c_void) {
    if let Some(address) = Real::new(name).address() {
        // SAFETY: a function of this name has this type; the argument is the program's own.
        unsafe {
            core::mem::transmute::<usize, unsafe extern "C" fn(*const c_void)>(address)(begin);
        }
    }
}
