//! Records allocations by interposing the functions of the program's allocator.
//!
//! Only in the build with the feature `allocations`, which is for `-e alloc` alone. The program keeps its own
//! allocator, and its blocks are unchanged. A bit for 16 KiB of addresses, 0 for nearly all, tells whether a sampled block may
//! begin there; then the table of live blocks decides.
//!
//! What must never happen here: an allocation by the program's allocator, a lock, a wait, a change of `errno`. A call may
//! come before anything has started, from a signal handler, under the loader's lock, in a child of `vfork`, or after
//! `exit`.

mod allocation_call;
mod alone;
mod countdown;
mod entry;
mod mode;
mod real;
mod redirection;
mod sampled_blocks;
mod sampling;

use alloc::format;
use core::sync::atomic::{AtomicBool, Ordering};

use handler::recording::Recording;

use crate::agent::Agent;
use crate::journal;
use crate::link_map;

pub(crate) use sampling::never;

/// The program defines an allocator, and the calls of its libraries were redirected.
static IS_REDIRECTED: AtomicBool = AtomicBool::new(false);

/// Starts sampling. The calls of libraries do not come to the exported functions if the program defines an allocator.
pub(crate) fn begin(recording: &Recording, agent: &Agent) {
    sampling::begin(recording, agent.config.allocations);
    if real::find_in_program() {
        // An injected library has redirected all calls, and a forked child has those of its parent.
        if !link_map::is_without_loader() && !IS_REDIRECTED.swap(true, Ordering::Relaxed) {
            redirection::begin_for_program(true);
        }
        let process = format!("process {} (", platform::sys::process_id());
        let what = b"): the program defines malloc; only calls from its libraries are recorded, and what it frees itself counts as in use";
        let text = [process.as_bytes(), &agent.names.program, what].concat();
        journal::tell_setting(recording, b"allocations", &text);
    }
}

/// Redirects the calls of libraries that were loaded meanwhile.
pub(crate) fn follow_loads() {
    if IS_REDIRECTED.load(Ordering::Relaxed) {
        redirection::begin_for_program(false);
    }
}

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
    sampled_blocks::forget();
}
