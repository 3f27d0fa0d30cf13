//! The frame-pointer walk: two loads a frame, on a workload that was built for it.

use crate::method::{MOST, Method, Stack};
use crate::workload::{DEPTH, Walkway};

/// Follows the chain of saved rbp.
pub(crate) struct FramePointer;

impl Method for FramePointer {
    fn name(&self) -> &'static str {
        "frame pointers"
    }

    fn on_framed_code(&self) -> bool {
        true
    }

    fn capture(&mut self, walkway: &Walkway, stack: &mut Stack) -> usize {
        let mut frame = walkway.frame;
        let mut depth = 0;
        // The Rust frames below the workload have no frame pointers: the walk ends where the workload does.
        while depth < DEPTH.min(MOST) {
            // SAFETY: `frame` starts as the innermost frame's own frame pointer and every function of this workload
            // saves its caller's, so each is a live stack address for as many steps as the workload has frames.
            unsafe {
                stack[depth] = *frame.add(1);
                frame = *frame as *const u64;
            }
            depth += 1;
        }
        depth
    }
}
