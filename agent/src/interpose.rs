//! The functions of the C library that this library stands in front of.
//!
//! Each does what the program asked, by the real function, and tells the agent what it must know.

use core::ffi::{c_int, c_void};

use handler::process;

use crate::process as life;
use crate::symbols::{self, Real};
use crate::threads;

/// Looks up every function behind this library, in one pass over the loaded objects.
pub(crate) fn find_real_functions() {
    let mut all: alloc::vec::Vec<&Real> = alloc::vec::Vec::new();
    all.extend(threads::REAL);
    all.extend(life::REAL);
    symbols::resolve(&all);
}

/// POSIX `pthread_create`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    routine: usize,
    argument: usize,
) -> c_int {
    type Create = unsafe extern "C" fn(*mut c_void, *const c_void, usize, usize) -> c_int;
    let Some(real) = threads::PTHREAD_CREATE.address() else { return libc::EAGAIN };
    // SAFETY: the C library's function of this type.
    let real = unsafe { core::mem::transmute::<usize, Create>(real) };
    if process::recording().is_none() || process::is_filtered() {
        // SAFETY: passed on as they came.
        return unsafe { real(thread, attributes, routine, argument) };
    }
    let start = threads::prepare(routine, argument);
    // SAFETY: the trampoline takes `start` and runs the routine with its argument.
    let result = unsafe { real(thread, attributes, threads::trampoline(), start as usize) };
    if result != 0 {
        // SAFETY: no thread came of it.
        unsafe { threads::cancel(start) };
    }
    result
}
