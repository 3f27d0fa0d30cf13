//! The stack record: its contents, and the bits that writer and reader share.
//!
//! Consecutive stacks of a thread are similar, so a record refers to the suffix it shares with the previous stack and
//! contains only the other frames: see "The stack record" in `FORMAT.md`. [`StackChain`](crate::StackChain) writes it,
//! [`StackDecoder`](crate::StackDecoder) reads it.

use core::num::NonZeroU64;

/// Maximum number of frames of a stack, and of `--max-stack`. Slots and records have space for this many.
pub const MAX_DEPTH: usize = 1000;

/// Entries of the table of recent frames, indexed by one byte.
pub(crate) const RECENT: usize = 256;

/// The fixed part of a stack sample, before its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackHead {
    /// Number of events that the sample stands for (timer periods, at least 1).
    pub weight: u32,
    /// Why the walk ended: `unwind::End as u8`; 0 means that it reached the root.
    pub end: u8,
    /// The source that triggered the sample: a `Source` number of the session.
    pub source: u8,
    /// The request that it answers; 0 for none.
    pub nonce: u64,
}

/// How a record relates to earlier stacks of its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Standalone: complete, and no other record refers to it.
    Standalone,
    /// Complete, and the first of a chain.
    First,
    /// Refers to the stack in the preceding record.
    Next,
    /// Refers to the stack this many records before: at least 2.
    Later(NonZeroU64),
}

impl Form {
    const STANDALONE: u8 = 0;
    const FIRST: u8 = 1;
    pub(crate) const NEXT: u8 = 2;
    const LATER: u8 = 3;

    /// The form that refers to the stack `distance` records before; `None` for 0.
    pub(crate) const fn after(distance: u64) -> Option<Self> {
        match NonZeroU64::new(distance) {
            None => None,
            Some(NonZeroU64::MIN) => Some(Self::Next),
            Some(distance) => Some(Self::Later(distance)),
        }
    }

    /// How many records before is the stack that it refers to; 0 for none.
    pub(crate) const fn distance(self) -> u64 {
        match self {
            Self::Standalone | Self::First => 0,
            Self::Next => 1,
            Self::Later(distance) => distance.get(),
        }
    }

    pub(crate) const fn bits(self) -> u8 {
        match self {
            Self::Standalone => Self::STANDALONE,
            Self::First => Self::FIRST,
            Self::Next => Self::NEXT,
            Self::Later(_) => Self::LATER,
        }
    }

    /// The form with these bits. `distance` provides the distance of a later one, which is at least 2.
    pub(crate) fn from_bits(bits: u8, distance: impl FnOnce() -> Option<u64>) -> Option<Self> {
        Some(match bits & 3 {
            Self::STANDALONE => Self::Standalone,
            Self::FIRST => Self::First,
            Self::NEXT => Self::Next,
            _ => Self::after(distance().filter(|distance| *distance > 1)?)?,
        })
    }
}

/// Flags of the first byte besides the form: the field is present because it is not its default.
pub(crate) mod flag {
    pub(crate) const WEIGHT: u8 = 1 << 2;
    pub(crate) const END: u8 = 1 << 3;
    pub(crate) const NONCE: u8 = 1 << 4;
    /// Literal frames take eight bytes instead of four.
    pub(crate) const WIDE: u8 = 1 << 5;
    pub(crate) const ALL: u8 = WEIGHT | END | NONCE | WIDE | 3;
}

/// In place of an index of the recent-frames table: the frame is literal.
pub(crate) const LITERAL: u8 = 0;

/// The index of a frame in the recent-frames table; never used as [`LITERAL`].
#[inline(always)]
pub(crate) const fn recent_index(frame: u64) -> u8 {
    // Fibonacci hashing: the high bits of the product depend on all bits below them.
    ((frame as u32).wrapping_mul(0x9e37_79b9) >> 24) as u8
}

/// The difference between `frame` and `base`, small for frames of one module: the flags are rotated to the low end.
#[inline(always)]
pub(crate) const fn distance(frame: u64, base: u64) -> i64 {
    frame.rotate_left(3).wrapping_sub(base.rotate_left(3)) as i64
}

/// The frame at that difference from `base`.
pub(crate) const fn frame_at(distance: i64, base: u64) -> u64 {
    base.rotate_left(3).wrapping_add(distance as u64).rotate_right(3)
}

/// Whether the difference fits four bytes.
#[inline(always)]
pub(crate) const fn is_near(distance: i64) -> bool {
    distance as i32 as i64 == distance
}
