//! The stack record: what it says, and the bits that its writer and its reader share.
//!
//! Stacks of one thread resemble each other, so a record names what it has in common with the stack before it and
//! spells out the rest: see "The stack record" in `FORMAT.md`. [`StackChain`](crate::StackChain) writes,
//! [`StackDecoder`](crate::StackDecoder) reads.

use core::num::NonZeroU64;

/// Most frames of a stack: the largest `--max-stack`. A slot and a record have room for so many.
pub const MAX_DEPTH: usize = 1000;

/// Places of the table of recent frames. A byte names a place.
pub(crate) const RECENT: usize = 256;

/// Everything of a stack sample but its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackHead {
    /// Events the sample stands for (timer periods, at least 1).
    pub weight: u32,
    /// Why the walk ended: `unwind::End as u8`; 0 = reached the root.
    pub end: u8,
    /// What asked for the sample: a `Source` number of the session.
    pub source: u8,
    /// The request it answers; 0 = none.
    pub nonce: u64,
}

/// How a record stands to the stacks before it in its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Whole, and nothing refers to it.
    Aside,
    /// Whole, and the first of a chain.
    First,
    /// Refers to the stack in the record just before.
    Next,
    /// Refers to the stack so many records before it: at least 2.
    Later(NonZeroU64),
}

impl Form {
    const ASIDE: u8 = 0;
    const FIRST: u8 = 1;
    pub(crate) const NEXT: u8 = 2;
    const LATER: u8 = 3;

    /// Refers to the stack so many records before it, if that is not 0.
    pub(crate) const fn after(distance: u64) -> Option<Self> {
        match NonZeroU64::new(distance) {
            None => None,
            Some(NonZeroU64::MIN) => Some(Self::Next),
            Some(distance) => Some(Self::Later(distance)),
        }
    }

    /// How many records before it the stack is that it refers to; 0 if to none.
    pub(crate) const fn distance(self) -> u64 {
        match self {
            Self::Aside | Self::First => 0,
            Self::Next => 1,
            Self::Later(distance) => distance.get(),
        }
    }

    pub(crate) const fn bits(self) -> u8 {
        match self {
            Self::Aside => Self::ASIDE,
            Self::First => Self::FIRST,
            Self::Next => Self::NEXT,
            Self::Later(_) => Self::LATER,
        }
    }

    /// The form with those bits; the distance of a later one comes from `distance`, and is at least 2.
    pub(crate) fn from_bits(bits: u8, distance: impl FnOnce() -> Option<u64>) -> Option<Self> {
        Some(match bits & 3 {
            Self::ASIDE => Self::Aside,
            Self::FIRST => Self::First,
            Self::NEXT => Self::Next,
            _ => Self::after(distance().filter(|distance| *distance > 1)?)?,
        })
    }
}

/// Flags of the first byte beside the form: the field is there, and is not its default.
pub(crate) mod flag {
    pub(crate) const WEIGHT: u8 = 1 << 2;
    pub(crate) const END: u8 = 1 << 3;
    pub(crate) const NONCE: u8 = 1 << 4;
    /// Literal frames take eight bytes each and not four.
    pub(crate) const WIDE: u8 = 1 << 5;
    pub(crate) const ALL: u8 = WEIGHT | END | NONCE | WIDE | 3;
}

/// In place of a frame's place in the table: it is literal.
pub(crate) const LITERAL: u8 = 0;

/// The place of a frame in the table of recent ones. None is ever looked for at [`LITERAL`].
#[inline(always)]
pub(crate) const fn recent_place(frame: u64) -> u8 {
    // Fibonacci hashing: the high bits of the product depend on all bits below them.
    ((frame as u32).wrapping_mul(0x9e37_79b9) >> 24) as u8
}

/// The distance from `base` to `frame`, small for frames of one module: flags turned to the low end.
#[inline(always)]
pub(crate) const fn distance(frame: u64, base: u64) -> i64 {
    frame.rotate_left(3).wrapping_sub(base.rotate_left(3)) as i64
}

/// The frame at that distance from `base`.
pub(crate) const fn frame_at(distance: i64, base: u64) -> u64 {
    base.rotate_left(3).wrapping_add(distance as u64).rotate_right(3)
}

/// Whether four bytes hold the distance.
#[inline(always)]
pub(crate) const fn is_near(distance: i64) -> bool {
    distance as i32 as i64 == distance
}
