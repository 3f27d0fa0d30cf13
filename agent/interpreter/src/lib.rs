//! Interpreted frames: what an interpreter runs in the native frames of its evaluation loop.
//!
//! An interpreter's part of a walk comes after the native one. It gets the thread pointer, a reader of memory that never
//! faults (`Memory`), and gives runs of frames (`Found`), each with an address in the very native frame that evaluates
//! it. These are then put among the native frames where they belong. It need not know how frames are recorded, and the
//! walker does not know of interpreters: one more of them is one more room beside [`python`]. Unwinders that programs and
//! plug-ins register are asked during the native walk, [`regions`].
//!
//! What must never happen here: an unprobed read of memory that may be unmapped, an uncertain frame (an unreadable run ends
//! with a mark, `gap`), work in a process without an interpreter. And all of this runs in the sampling signal handler: no
//! allocation, no lock, no wait, no call into a C library, no write to `errno`, no panic, no initialisation on first use, and
//! half a kibibyte more of the stack than a sample without an interpreter needs.
#![no_std]
#![warn(missing_docs)]
#![warn(clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_macros))]

mod found;
mod functions;
mod gap;
mod memory;
mod placing;
pub mod python;
pub mod regions;

use platform::activity::is_filtered;
use platform::bounds::Bounds;
use platform::thread_pointer;
use shm_format::{MAX_DEPTH, Region};
use unwind::{End, StackCache, Walk};

use found::Found;
pub use memory::Signals;
use memory::{Memory, Pages};
use python::{Calls, Python, Thread, Work};

/// The memory that a thread needs for interpreted frames. All zeros when empty.
pub struct Scratch {
    pages: Pages,
    python: Work,
    found: Found,
    /// Native and interpreted frames, leaf first.
    frames: [u64; MAX_DEPTH],
    /// How many of these were placed for the marked native frames and what was found; 0 if that cannot be used again.
    placed: usize,
    regions: regions::Scratch,
}

impl Scratch {
    /// Forgets what belonged to another thread.
    pub fn reset(&mut self) {
        self.python.reset();
    }

    /// The part for region unwinders.
    pub fn regions(&mut self) -> &mut regions::Scratch {
        &mut self.regions
    }
}

/// The thread whose stack it is.
pub struct SampledThread<'a> {
    /// The region of its process, in which functions are announced.
    pub region: &'a Region,
    /// Whether its signals are blocked.
    pub signals: Signals,
    /// Its own stack, if known.
    pub stack: Bounds,
    /// The process has no other thread.
    pub is_only: bool,
}

/// The native frames among which an interpreter's are looked for.
enum Native<'a> {
    /// Those of a walk, and whether it is complete.
    Walked(&'a StackCache, bool),
    /// Those that a complete walk has found earlier: the innermost stack pointer, and what they tell of the interpreter.
    Known(u64, Calls),
}

/// Finds the interpreter's frames. Returns whether these are all, in stack order.
fn find(python: &Python, sampled: &SampledThread<'_>, native: &Native<'_>, scratch: &mut Scratch) -> bool {
    let Scratch { pages, python: work, found, .. } = scratch;
    found.clear();
    let Some(pointer) = thread_pointer::pthread_self() else { return false };
    let &SampledThread { region, signals, stack: whole_stack, is_only } = sampled;
    let (native, innermost, is_walked, calls) = match *native {
        Native::Walked(native, is_walked) => {
            (Some(native), native.stack_pointers().next().unwrap_or(0), is_walked, None)
        }
        Native::Known(innermost, calls) => (None, innermost, true, Some(calls)),
    };
    let stack = match whole_stack.hold(innermost) {
        true => Bounds { low: innermost, ..whole_stack },
        false => Bounds::NONE,
    };
    let mut memory = Memory::new(!is_filtered(), signals, pages, [python.data, stack]);
    let thread =
        Thread { python, region, native, innermost, pointer, whole_stack, stack, is_only, is_walked };
    python::find(&thread, calls, &mut memory, found, work)
}

/// Finds the interpreter's frames again, among native ones that an earlier walk has found from the stack pointer `innermost` to
/// the root, and of which `calls` is known. Returns a hash of them; `None` if only a walk can tell.
pub fn find_again(
    python: &Python,
    sampled: &SampledThread<'_>,
    innermost: u64,
    calls: Calls,
    scratch: &mut Scratch,
) -> Option<u64> {
    let is_complete = find(python, sampled, &Native::Known(innermost, calls), scratch);
    if !scratch.found.is_same() {
        scratch.placed = 0;
    }
    is_complete.then(|| scratch.found_hash())
}

impl Scratch {
    /// What the native frames of the last walk tell of the interpreter, if one looked for its frames since the last call of
    /// [`forget_calls`](Self::forget_calls).
    pub fn calls(&self) -> Option<Calls> {
        self.python.calls()
    }

    /// Forgets what the last walk has told.
    pub fn forget_calls(&mut self) {
        self.python.forget_calls();
    }

    /// The hash of what was found last.
    pub fn found_hash(&self) -> u64 {
        self.found.hash()
    }
}

/// Merges the native frames of `walk` with the frames of `python`, if that is loaded, and, if the process `has_regions`, with
/// what their unwinders emitted: at most `max_frames`. `None` if there is nothing to merge.
#[inline(never)]
pub fn add_frames<'s>(
    python: Option<&Python>,
    has_regions: bool,
    sampled: &SampledThread<'_>,
    max_frames: usize,
    native: &mut StackCache,
    walk: &mut Walk,
    scratch: &'s mut Scratch,
) -> Option<&'s [u64]> {
    match python {
        Some(python) => {
            let walked = Native::Walked(native, walk.end.is_complete());
            find(python, sampled, &walked, scratch);
        }
        None => scratch.found.clear(),
    }
    let Scratch { found, frames, placed, regions, .. } = scratch;
    let emitted = Some(regions.emitted()).filter(|emitted| has_regions && !emitted.is_empty());
    if found.is_empty() && emitted.is_none() {
        return None;
    }
    let is_same = native.is_marked() && found.is_same() && emitted.is_none() && *placed > 0;
    let count = if is_same {
        *placed
    } else {
        let is_complete = walk.end.is_complete();
        *placed = 0;
        let count = placing::place(found, emitted, native, is_complete, frames)?;
        if emitted.is_none() && is_complete {
            *placed = count;
        }
        count
    };
    if python.is_some() {
        native.mark();
    }
    if count > max_frames {
        walk.end = End::DepthLimit;
    }
    walk.depth = count.min(max_frames);
    if is_same {
        walk.unchanged = walk.depth;
    }
    frames.get(..walk.depth)
}
