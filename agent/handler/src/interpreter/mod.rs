//! Interpreted frames: what an interpreter runs in the native frames of its evaluation loop.
//!
//! An interpreter's part of a walk comes after the native one. It gets the thread pointer, a reader of memory that never
//! faults (`Memory`), and gives runs of frames (`Found`), each with an address in the very native frame that evaluates
//! it. These are then put among the native frames where they belong. It need not know how frames are recorded, and the
//! walker does not know of interpreters: one more of them is one more room beside [`python`]. Unwinders that programs and
//! plug-ins register are asked during the native walk, [`regions`].
//!
//! What must never happen here: an unprobed read of memory that may be unmapped, an uncertain frame (an unreadable run ends
//! with a mark, `gap`), work in a process without an interpreter.

mod found;
mod functions;
mod gap;
mod memory;
mod placing;
pub mod python;
pub mod regions;

use shm_format::MAX_DEPTH;
use unwind::{End, StackCache, Walk};

use crate::activity::is_filtered;
use crate::arch;
use crate::recording::Recording;
use crate::snapshot::Pinned;
use crate::stack::Bounds;
use found::Found;
pub(crate) use memory::Signals;
use memory::{Memory, Pages};
use python::{Thread, Work};

/// The memory that a thread needs for interpreted frames. All zeros when empty.
pub(crate) struct Scratch {
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
    pub(crate) fn reset(&mut self) {
        self.python.reset();
    }

    /// The part for region unwinders.
    pub(crate) fn regions(&mut self) -> &mut regions::Scratch {
        &mut self.regions
    }
}

/// The thread whose stack it is.
pub(crate) struct SampledThread {
    /// Whether its signals are blocked.
    pub(crate) signals: Signals,
    /// Its own stack, if known.
    pub(crate) stack: Bounds,
    /// The process has no other thread.
    pub(crate) is_only: bool,
}

/// Merges the native frames of `walk` with the interpreter's frames and, if there are regions, with what their unwinders
/// emitted. `None` if there is nothing to merge.
#[inline(never)]
pub(crate) fn add_frames<'s>(
    pinned: &Pinned<'_>,
    sampled: &SampledThread,
    recording: &Recording,
    native: &mut StackCache,
    walk: &mut Walk,
    scratch: &'s mut Scratch,
) -> Option<&'s [u64]> {
    let Scratch { pages, python, found, frames, placed, regions } = scratch;
    let &SampledThread { signals, stack, is_only } = sampled;
    let has_regions = !pinned.regions().is_empty();
    found.clear();
    if let Some(interpreter) = pinned.python()
        && let Some(pointer) = arch::pthread_self()
    {
        let innermost = native.stack_pointers().next().filter(|pointer| stack.hold(*pointer));
        let used = innermost.map_or(Bounds::NONE, |low| Bounds { low, ..stack });
        let mut memory = Memory::new(!is_filtered(), signals, pages, [interpreter.data, used]);
        let is_walked = walk.end.is_complete();
        let thread = Thread {
            python: interpreter,
            recording,
            native,
            pointer,
            whole_stack: stack,
            stack: used,
            is_only,
            is_walked,
        };
        python::find(&thread, &mut memory, found, python);
    }
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
    if pinned.python().is_some() {
        native.mark();
    }
    if count > recording.max_frames {
        walk.end = End::DepthLimit;
    }
    walk.depth = count.min(recording.max_frames);
    if is_same {
        walk.unchanged = walk.depth;
    }
    frames.get(..walk.depth)
}
