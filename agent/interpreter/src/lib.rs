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
use python::{Calls, KnownWalks, Python, Thread, Work};

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

/// The thread whose interpreter's frames are looked for, by its innermost stack pointer and its native frames, if these were just
/// walked; and whether they reach the root. `None` if the thread is not known.
#[inline]
fn thread<'a>(
    python: &'a Python,
    sampled: &SampledThread<'a>,
    native: Option<&'a StackCache>,
    innermost: u64,
    is_walked: bool,
) -> Option<Thread<'a>> {
    let &SampledThread { region, stack: whole_stack, is_only, .. } = sampled;
    let stack = match whole_stack.hold(innermost) {
        true => Bounds { low: innermost, ..whole_stack },
        false => Bounds::NONE,
    };
    let pointer = thread_pointer::pthread_self()?;
    Some(Thread { python, region, native, innermost, pointer, whole_stack, stack, is_only, is_walked })
}

/// The memory that a walk over the interpreter's frames may read.
#[inline]
fn memory<'a>(thread: &Thread<'_>, signals: Signals, pages: &'a mut Pages) -> Memory<'a> {
    Memory::new(!is_filtered(), signals, pages, [thread.python.data, thread.stack])
}

/// Finds the interpreter's frames again, among native ones that an earlier walk has found from the stack pointer `innermost` to
/// the root, and of which `calls` is known. Returns a hash of them; `None` if only a walk can tell.
#[inline]
pub fn find_again(
    python: &Python,
    sampled: &SampledThread<'_>,
    innermost: u64,
    calls: Calls,
    known: &mut KnownWalks,
    scratch: &mut Scratch,
) -> Option<u64> {
    let thread = thread(python, sampled, None, innermost, true)?;
    match known.find(&thread, calls, scratch.python.codes()) {
        Some(hash) => Some(hash),
        None => find_anew(&thread, sampled.signals, calls, known, scratch),
    }
}

/// The same, by reading all of them.
#[inline(never)]
fn find_anew(
    thread: &Thread<'_>,
    signals: Signals,
    calls: Calls,
    known: &mut KnownWalks,
    scratch: &mut Scratch,
) -> Option<u64> {
    let Scratch { pages, python: work, found, placed, .. } = scratch;
    found.clear();
    let mut memory = memory(thread, signals, pages);
    let is_complete = python::find(thread, Some(calls), &mut memory, found, work);
    if !found.is_same() {
        *placed = 0;
    }
    if let Some(states) = work.only_state().filter(|_| is_complete) {
        known.keep(thread, calls, found, (states, work.codes()), &mut memory);
    }
    is_complete.then(|| found.hash())
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
    let Scratch { pages, python: work, found, frames, placed, regions } = scratch;
    found.clear();
    let innermost = native.stack_pointers().next().unwrap_or(0);
    let is_complete = walk.end.is_complete();
    if let Some(python) = python
        && let Some(thread) = thread(python, sampled, Some(native), innermost, is_complete)
    {
        let mut memory = memory(&thread, sampled.signals, pages);
        python::find(&thread, None, &mut memory, found, work);
    }
    let emitted = Some(regions.emitted()).filter(|emitted| has_regions && !emitted.is_empty());
    if found.is_empty() && emitted.is_none() {
        return None;
    }
    let is_same = native.is_marked() && found.is_same() && emitted.is_none() && *placed > 0;
    let count = if is_same {
        *placed
    } else {
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
