//! Puts runs of Python frames among the native frames: each just inside the native frame that evaluates it, which is the one that
//! holds the run's address.

use shm_format::MAX_DEPTH;
use unwind::End;

use super::frames::Run;
use crate::wall::stack::NativeStack;

/// Both, leaf first. Runs that lie in no native frame are left out, unless the native walk did not get to its end: then they follow
/// it.
pub(super) fn place(native: NativeStack, mut runs: Vec<Run>) -> NativeStack {
    if runs.is_empty() {
        return native;
    }
    // Those of several thread states may alternate.
    runs.sort_by_key(|run| run.inside);
    let mut runs = runs.into_iter().peekable();
    let mut placed = NativeStack::empty(native.end);
    for (number, (&frame, &low)) in native.frames.iter().zip(&native.pointers).enumerate() {
        let high = native.pointers.get(number + 1).copied().unwrap_or(u64::MAX);
        while let Some(run) = runs.next_if(|run| low != 0 && run.inside < high) {
            if run.inside >= low {
                placed.extend(run.frames);
            }
        }
        placed.extend([frame]);
    }
    if !native.end.is_complete() {
        runs.for_each(|run| placed.extend(run.frames));
    }
    if placed.frames.len() > MAX_DEPTH {
        placed.frames.truncate(MAX_DEPTH);
        placed.end = End::DepthLimit;
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(inside: u64, frames: &[u64]) -> Run {
        Run { inside, frames: frames.into() }
    }

    fn native(end: End) -> NativeStack {
        NativeStack { frames: vec![1, 2, 3], pointers: vec![0x100, 0x200, 0x300], end }
    }

    #[test]
    fn runs_lie_just_inside_the_frames_that_evaluate_them() {
        let runs = vec![run(0x310, &[20, 21]), run(0x210, &[10]), run(0x280, &[11])];
        assert_eq!(place(native(End::Root), runs).frames, [1, 10, 11, 2, 20, 21, 3]);
    }

    #[test]
    fn runs_in_no_native_frame_are_left_out_unless_the_walk_ended_early() {
        let outside = |end| place(native(end), vec![run(0x80, &[10]), run(0x210, &[11])]).frames;
        assert_eq!(outside(End::Root), [1, 11, 2, 3]);
        let unknown = NativeStack { pointers: vec![0x100, 0, 0], ..native(End::NoModule) };
        assert_eq!(place(unknown, vec![run(0x400, &[10])]).frames, [1, 2, 3, 10]);
    }
}
