//! The interposed functions of the C library.
//!
//! Each does what the program asked for, through the real function, and informs the agent. In a child of `vfork`, which
//! runs in its parent's memory, each must do nothing else than call the real function.

mod exec;
mod exit;
mod frames;
#[cfg(feature = "locks")]
mod futex;
mod handlers;
mod loader;
mod lookups;
mod masks;
mod real;
mod seccomp;
mod signals;
mod stacks;
mod threads;
mod timers;
mod tracing;

use crate::symbols::{self, Real};

/// Looks up all real functions, in one pass over the loaded objects.
pub(crate) fn find_real_functions() {
    let groups: [&[&Real]; 13] = [
        &real::REAL,
        &crate::threads::REAL,
        &crate::process::REAL,
        &exec::REAL,
        &exit::REAL,
        &loader::REAL,
        &lookups::REAL,
        &masks::REAL,
        &seccomp::REAL,
        &signals::REAL,
        &stacks::REAL,
        &threads::REAL,
        &tracing::REAL,
    ];
    symbols::resolve(&groups.concat());
    exec::look_at_real();
    timers::find_real_functions();
}
