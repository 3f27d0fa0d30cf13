//! How interposed functions call the real ones, and how they fail.

use core::ffi::c_int;

use handler::recording::{self, Recording};

use crate::agent;
use crate::symbols::{self, Real};

static ERRNO_LOCATION: Real = Real::new(c"__errno_location");
/// The real functions that this module needs.
pub(super) static REAL: [&Real; 1] = [&ERRNO_LOCATION];

/// Whether the real function is the C library's, and not that of another library which interposes it, too. Only until the
/// agent has started.
pub(super) fn is_of_c_library(function: &Real) -> bool {
    symbols::are_of_one_object(function, &ERRNO_LOCATION)
}

/// The recording, if the calling process owns it.
pub(super) fn own_recording() -> Option<&'static Recording> {
    recording::current().filter(|_| agent::is_own_process())
}

/// Sets the calling thread's `errno` and returns -1, for a function that fails here.
pub(super) fn fail(errno: c_int) -> c_int {
    type Location = unsafe extern "C" fn() -> *mut c_int;
    if let Some(location) = ERRNO_LOCATION.address() {
        // SAFETY: the C library's function of this type; its result is the thread's own variable.
        unsafe { *core::mem::transmute::<usize, Location>(location)() = errno };
    }
    -1
}

/// Declares real functions, and an array of all of them for `find_real_functions`.
macro_rules! real_functions {
    ($($constant:ident = $name:literal;)*) => {
        $(static $constant: $crate::symbols::Real = $crate::symbols::Real::new($name);)*
        /// All functions of the C library that this module needs.
        pub(super) static REAL: [&$crate::symbols::Real; [$($name),*].len()] = [$(&$constant),*];
    };
}
pub(super) use real_functions;

/// Calls a real function with the given type; evaluates to `$missing` if the C library has none.
macro_rules! call_real {
    ($constant:ident as fn($($type:ty),*) -> $result:ty, ($($argument:expr),*), else $missing:expr) => {
        match $constant.address() {
            // SAFETY: the C library's function of this name has this type; the arguments are the program's own.
            Some(address) => unsafe {
                core::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> $result>(address)($($argument),*)
            },
            None => $missing,
        }
    };
}
pub(super) use call_real;
