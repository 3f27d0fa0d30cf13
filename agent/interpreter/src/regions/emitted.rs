//! The frames that unwinders emitted during a walk, in runs: one for each native frame that has some.

use shm_format::MAX_DEPTH;
use unwind::{Frame, Interpreted};

use crate::gap::Gap;

/// Native frames that may have some.
const RUNS: usize = 512;

/// Frames that stand inside a native one, or in its place.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    /// Number of the native frame, leaf first.
    pub(crate) number: usize,
    /// The native frame is left out.
    pub(crate) replaces: bool,
    from: u32,
    until: u32,
}

/// Runs, the innermost first.
pub(crate) struct Emitted {
    frames: [u64; MAX_DEPTH],
    runs: [Run; RUNS],
    depth: usize,
    /// Frames in closed runs.
    closed: usize,
    count: usize,
}

impl Emitted {
    pub(super) fn clear(&mut self) {
        (self.depth, self.closed, self.count) = (0, 0, 0);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The runs.
    pub(crate) fn runs(&self) -> &[Run] {
        self.runs.get(..self.count).unwrap_or(&[])
    }

    /// The frames of a run.
    pub(crate) fn of(&self, run: &Run) -> &[u64] {
        self.frames.get(run.from as usize..run.until as usize).unwrap_or(&[])
    }

    /// Adds a frame to the run that is not closed yet; none if there is no room.
    pub(super) fn push(&mut self, frame: Interpreted) -> Option<()> {
        *self.frames.get_mut(self.depth)? = Frame::interpreted(frame).bits();
        self.depth += 1;
        Some(())
    }

    /// Adds a mark, in the place of the last frame if there is no room.
    pub(super) fn push_gap(&mut self, gap: Gap) {
        let mark = Interpreted { function: Interpreted::NOTHING, offset: gap as u32 };
        if self.push(mark).is_none()
            && let Some(last) = self.frames.last_mut()
        {
            *last = Frame::interpreted(mark).bits();
        }
    }

    /// Closes the run of all frames since the last one, if there are any: they are those of a native frame.
    pub(super) fn close(&mut self, number: usize, replaces: bool) {
        if self.depth > self.closed
            && let Some(run) = self.runs.get_mut(self.count)
        {
            *run = Run { number, replaces, from: self.closed as u32, until: self.depth as u32 };
            self.count += 1;
        }
        self.closed = self.depth;
    }

    /// Forgets the frames of the run that is not closed yet.
    pub(super) fn forget_open(&mut self) {
        self.depth = self.closed;
    }
}
