//! A sample on its way, whose frames stay where they are.

use super::event::Sample;

/// A sample whose frames are lent.
#[derive(Clone, Copy, Debug)]
pub struct LentSample<'a> {
    /// Everything but its frames: those of its own do not count.
    pub sample: &'a Sample,
    /// `unwind::Frame` words, root first.
    pub frames: &'a [u64],
    /// So many of them at least, from the root, are those of the sample that came before, of whatever thread.
    pub shared: usize,
}

impl LentSample<'_> {
    /// The same with frames of its own.
    pub fn to_sample(&self) -> Sample {
        let frames = self.frames.iter().rev().copied().collect();
        Sample { frames, ..self.sample.clone() }
    }
}
