//! A stack of allocations in the durable log, as the difference from an earlier one.

use crate::record_fields::{Fields, Fixed};

/// The frames of a stack, as in the payload.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct FrameWords<'a>(&'a [u8]);

impl<'a> FrameWords<'a> {
    /// The frames to write.
    #[must_use]
    pub fn new(frames: &'a [u64]) -> Self {
        // SAFETY: every byte of integers is initialized. The length is that of the slice.
        Self(unsafe { core::slice::from_raw_parts(frames.as_ptr().cast(), size_of_val(frames)) })
    }

    pub(crate) fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// The frame words.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator + use<'a> {
        self.0.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes))
    }
}

impl core::fmt::Debug for FrameWords<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A complete stack of a thread's allocations, referred to by its number. Its frames are those of a base and its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecurringStack<'a> {
    /// Number in the region, from 1 on. No number stands for two stacks, but a stack may have several numbers.
    pub id: u32,
    /// Its thread.
    pub tid: u32,
    /// Its thread's number in the region.
    pub seq: u32,
    /// The number of an earlier stack of the log, whose outermost frames it has; 0 for none.
    pub base: u32,
    /// How many frames it has of that stack.
    pub shared: u16,
    /// Its other frame words, leaf first.
    pub frames: FrameWords<'a>,
}

impl<'a> RecurringStack<'a> {
    pub(crate) fn put(&self, fixed: &mut Fixed) {
        let own = (self.frames.0.len() / 8) as u32;
        fixed.u32(self.id).u32(self.tid).u32(self.seq).u32(self.base);
        fixed.u32(u32::from(self.shared) << 16 | own & 0xffff);
    }

    pub(crate) fn parse(f: &mut Fields<'a>) -> Option<Self> {
        let (id, tid, seq, base, depth) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?, f.u32()?);
        let shared = (depth >> 16) as u16;
        let frames = FrameWords(f.take((depth & 0xffff) * 8)?);
        (base != 0 || shared == 0).then_some(Self { id, tid, seq, base, shared, frames })
    }
}
