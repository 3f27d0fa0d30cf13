//! The interpreted frames found for a thread, in runs, leaf first, as they are recorded.

use shm_format::MAX_DEPTH;
use unwind::{Frame, Interpreted, mix};

use super::gap::Gap;

/// Maximum number of runs: nested calls of evaluation loops.
const RUNS: usize = 1024;

/// The frames that one call of the evaluation loop runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// An address in the native frame of that call.
    pub(super) inside: u64,
    from: u32,
    until: u32,
}

/// The hash of these frames and of their runs.
#[inline]
pub(crate) fn hash(frames: impl Iterator<Item = u64>, of_runs: u64) -> u64 {
    mix(frames.fold(0, mix), of_runs)
}

/// Runs of frames, the innermost first.
pub(crate) struct Found {
    frames: [u64; MAX_DEPTH],
    runs: [Run; RUNS],
    depth: usize,
    /// Frames in closed runs.
    closed: usize,
    count: usize,
    /// `depth` and `count` of what was found before.
    before: (usize, usize),
    /// Some frame or run differs from what was found before.
    differs: bool,
}

impl Found {
    pub(super) fn clear(&mut self) {
        self.before = (self.depth, self.count);
        (self.depth, self.closed, self.count, self.differs) = (0, 0, 0, false);
    }

    /// Whether exactly the same was found before.
    pub(super) fn is_same(&self) -> bool {
        !self.differs && self.before == (self.depth, self.count)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// A hash of all frames and of the native frames that they belong to.
    #[inline(never)]
    pub(super) fn hash(&self) -> u64 {
        hash(self.all().iter().copied(), self.hash_of_runs())
    }

    /// A hash of the native frames that the runs belong to.
    pub(crate) fn hash_of_runs(&self) -> u64 {
        let word = |run: &Run| run.inside ^ u64::from(run.until).rotate_left(48);
        self.runs().iter().fold(0, |hash, run| mix(hash, word(run)))
    }

    /// The frames of all runs.
    pub(crate) fn all(&self) -> &[u64] {
        self.frames.get(..self.closed).unwrap_or(&[])
    }

    /// The runs.
    pub(crate) fn runs(&self) -> &[Run] {
        self.runs.get(..self.count).unwrap_or(&[])
    }

    /// The frames of a run.
    pub(super) fn of(&self, run: &Run) -> &[u64] {
        self.frames.get(run.from as usize..run.until as usize).unwrap_or(&[])
    }

    /// The number of frames so far.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// The number of frames that there is room for.
    pub(crate) fn room(&self) -> usize {
        MAX_DEPTH - self.depth
    }

    /// The address with which the last run was closed.
    pub(crate) fn last(&self) -> Option<u64> {
        self.runs().last().map(|run| run.inside)
    }

    /// Adds a frame to the open run; `None` if there is no room.
    #[inline]
    pub(crate) fn push(&mut self, frame: Interpreted) -> Option<()> {
        let (place, frame) = (self.frames.get_mut(self.depth)?, Frame::interpreted(frame).bits());
        self.differs |= *place != frame;
        *place = frame;
        self.depth += 1;
        Some(())
    }

    /// Adds frames, as they are recorded, to the open run. False if there is no room for all.
    #[inline]
    pub(crate) fn extend(&mut self, frames: impl Iterator<Item = u64>) -> bool {
        let (mut depth, mut differs, mut fits) = (self.depth, false, true);
        for frame in frames {
            match self.frames.get_mut(depth) {
                Some(place) => {
                    differs |= *place != frame;
                    *place = frame;
                    depth += 1;
                }
                None => fits = false,
            }
        }
        self.depth = depth;
        self.differs |= differs;
        fits
    }

    /// Adds a mark: frames are missing here.
    pub(crate) fn push_gap(&mut self, gap: Gap) {
        let mark = Interpreted { function: Interpreted::NOTHING, offset: gap as u32 };
        if self.push(mark).is_none()
            && let Some(last) = self.frames.last_mut()
        {
            *last = Frame::interpreted(mark).bits();
            self.differs = true;
        }
    }

    /// Closes the run of all frames since the last one, unless it is empty. `inside` is an address in the native frame that
    /// evaluates it.
    pub(crate) fn close(&mut self, inside: u64) {
        self.close_at(inside, self.depth);
    }

    /// The same for the frames before number `until`.
    pub(crate) fn close_at(&mut self, inside: u64, until: usize) {
        if until > self.closed
            && let Some(run) = self.runs.get_mut(self.count)
        {
            let new = Run { inside, from: self.closed as u32, until: until as u32 };
            self.differs |= *run != new;
            *run = new;
            self.count += 1;
            self.closed = until;
        }
    }

    /// Notes the address of a call that evaluates one frame, by its number from the leaf; `None` if there is no room.
    pub(crate) fn note(&mut self, number: usize, inside: u64) -> Option<()> {
        let run = self.runs.get_mut(self.count + number)?;
        self.differs |= run.inside != inside;
        run.inside = inside;
        Some(())
    }

    /// Closes runs of one frame each for as many noted calls, counted from the root. `end` is the number of frames with
    /// those of the calls; the innermost call takes all that the others leave of the open run.
    pub(crate) fn close_noted(&mut self, calls: usize, end: usize) {
        let (first, begin) = (self.count, self.closed);
        for number in 0..calls {
            let Some(inside) = self.runs.get(first + number).map(|run| run.inside) else { return };
            if let Some(before) = end.checked_sub(calls - number).filter(|before| *before >= begin) {
                self.close_at(inside, before + 1);
            }
        }
    }

    /// Forgets the frames of the open run.
    pub(crate) fn forget_open(&mut self) {
        self.depth = self.closed;
    }

    /// Sorts the runs of several thread states in stack order.
    pub(crate) fn sort(&mut self) {
        self.differs = true;
        let runs = self.runs.get_mut(..self.count).unwrap_or_default();
        // The runs of each state are sorted, so a run moves a few places at most, where states alternate.
        for sorted in 1..runs.len() {
            for index in (1..=sorted).rev() {
                let (Some(&outer), Some(&inner)) = (runs.get(index - 1), runs.get(index)) else { break };
                if outer.inside <= inner.inside {
                    break;
                }
                runs.swap(index - 1, index);
            }
        }
    }
}
