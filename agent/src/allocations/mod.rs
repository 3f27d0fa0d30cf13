//! Records allocations by interposing the functions of the program's allocator.
//!
//! Only in the build with the feature `allocations`, which is for `-e alloc` alone. The program keeps its own
//! allocator, and its blocks are unchanged. A byte per page, 0 for nearly all pages, tells whether a sampled block may
//! begin there; then the table of live blocks decides.
//!
//! What must never happen here: an allocation by the program's allocator, a lock, a wait, a change of `errno`. A call may
//! come before anything has started, from a signal handler, under the loader's lock, in a child of `vfork`, or after
//! `exit`.

mod allocation_call;
mod countdown;
mod entry;
mod mode;
mod real;
mod redirection;
mod sampled_pages;
mod sampling;

pub(crate) use sampling::{begin, never};

/// Finds the real functions.
pub(crate) fn find_real_functions() {
    real::find_all();
}

/// Redirects the allocations of a process into which the agent was injected, as far as its objects are loaded now. The loader
/// must be hooked. False if that is impossible.
pub(crate) fn redirect() -> bool {
    redirection::begin()
}

/// Ends the redirection, and the sampling.
pub(crate) fn end_redirection() {
    never();
    redirection::end();
}

/// Forgets the parent's sampled blocks, in a forked child.
pub(crate) fn forget_blocks() {
    sampled_pages::forget();
}
