//! A sample with borrowed frames.

use super::event::Sample;

/// A sample with borrowed frames.
#[derive(Clone, Copy, Debug)]
pub struct SampleRef<'a> {
    /// Everything but the frames; its own `frames` are ignored.
    pub sample: &'a Sample,
    /// `unwind::Frame` words, root first.
    pub frames: &'a [u64],
    /// How many of them, at least, are equal to those of the previous sample of any thread, counted from the root.
    pub shared: usize,
}

impl SampleRef<'_> {
    /// A copy that owns its frames.
    pub fn to_sample(&self) -> Sample {
        let frames = self.frames.iter().rev().copied().collect();
        Sample { frames, ..self.sample.clone() }
    }
}
