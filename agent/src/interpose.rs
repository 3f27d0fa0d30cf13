//! The functions of the C library that this library stands in front of.
//!
//! Each does what the program asked, by the real function, and tells the agent what it must know. In a child of
//! `vfork`, which runs in its parent's memory, each does what the program asked and nothing else.

mod exec;
mod handlers;
mod loader;
mod lookups;
mod masks;
mod seccomp;
mod signals;
mod stacks;
mod threads;
mod timers;

use core::ffi::c_int;

use handler::process::{self, Recording};

use crate::agent;
use crate::symbols::{self, Real};

static ERRNO_LOCATION: Real = Real::new(c"__errno_location");

/// Looks up every function behind this library, in one pass over the loaded objects.
pub(crate) fn find_real_functions() {
    let groups: [&[&Real]; 11] = [
        &[&ERRNO_LOCATION],
        &crate::threads::REAL,
        &crate::process::REAL,
        &exec::REAL,
        &loader::REAL,
        &lookups::REAL,
        &masks::REAL,
        &seccomp::REAL,
        &signals::REAL,
        &stacks::REAL,
        &threads::REAL,
    ];
    symbols::resolve(&groups.concat());
    timers::find_real_functions();
}

/// Forgets, in a forked child, the timers it does not inherit.
pub(crate) fn forget_timers() {
    timers::forget();
}

/// Has another timer stand in for the program's ITIMER_PROF, of which this is left. False if there can be none, or if
/// the program's calls do not come by here.
pub(crate) fn stand_in_for(left: &libc::itimerval) -> bool {
    timers::stand_in_for(left)
}

/// The recording, if this call is made by the process that owns it.
fn own_recording() -> Option<&'static Recording> {
    process::recording().filter(|_| agent::is_own_process())
}

/// Sets the calling thread's `errno`, for a function that fails here, and gives the customary -1.
fn fail(errno: c_int) -> c_int {
    type Location = unsafe extern "C" fn() -> *mut c_int;
    if let Some(location) = ERRNO_LOCATION.address() {
        // SAFETY: the C library's function of this type; its result is the thread's own variable.
        unsafe { *core::mem::transmute::<usize, Location>(location)() = errno };
    }
    -1
}

/// Declares real functions, with the array of all of them that [`find_real_functions`] wants.
macro_rules! real_functions {
    ($($constant:ident = $name:literal;)*) => {
        $(static $constant: $crate::symbols::Real = $crate::symbols::Real::new($name);)*
        /// All functions of the C library that this module needs.
        pub(super) static REAL: [&$crate::symbols::Real; [$($name),*].len()] = [$(&$constant),*];
    };
}
use real_functions;

/// Calls a real function as the given type, or gives up with `$missing` if the C library has none.
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
use call_real;
