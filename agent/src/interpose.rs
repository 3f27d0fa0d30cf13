//! The functions of the C library that this library stands in front of.
//!
//! Each does what the program asked, by the real function, and tells the agent what it must know. In a child of
//! `vfork`, which runs in its parent's memory, each does what the program asked and nothing else.

mod exec;
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

use crate::symbols::{self, Real};

/// Looks up every function behind this library, in one pass over the loaded objects.
pub(crate) fn find_real_functions() {
    let groups: [&[&Real]; 11] = [
        &real::REAL,
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
