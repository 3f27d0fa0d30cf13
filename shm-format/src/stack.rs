//! The stack record: what it says, and the bits that its writer and its reader share.
//!
//! Stacks of one thread resemble each other, so a record names what it has in common with the stack before it and
//! spells out the rest: see "The stack record" in `FORMAT.md`. [`StackChain`](crate::StackChain) writes,
//! [`StackDecoder`](crate::StackDecoder) reads.

use core::num::NonZeroU64;

/// Most frames of a stack.
pub const MAX_DEPTH: usize = 1000;

/// Frames that both sides remember by their hash, to name them with one byte. A power of two up to 256.
pub(crate) const RECENT: usize = 128;

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
    /// Refers to the stack so many records before it.
    After(NonZeroU64),
}

impl Form {
    const ASIDE: u8 = 0;
    const FIRST: u8 = 1;
    /// After the record just before.
    pub(crate) const NEXT: u8 = 2;
    const LATER: u8 = 3;

    pub(crate) const fn bits(self) -> u8 {
        match self {
            Self::Aside => Self::ASIDE,
            Self::First => Self::FIRST,
            Self::After(distance) if distance.get() == 1 => Self::NEXT,
            Self::After(_) => Self::LATER,
        }
    }

    /// The form with those bits; the distance of a later one comes from `distance`, and is at least 2.
    pub(crate) fn from_bits(bits: u8, distance: impl FnOnce() -> Option<u64>) -> Option<Self> {
        Some(match bits & 3 {
            Self::ASIDE => Self::Aside,
            Self::FIRST => Self::First,
            Self::NEXT => Self::After(NonZeroU64::MIN),
            _ => Self::After(NonZeroU64::new(distance().filter(|distance| *distance > 1)?)?),
        })
    }
}

/// Flags of the first byte beside the form: the field is there, and is not its default.
pub(crate) mod flag {
    pub(crate) const WEIGHT: u8 = 1 << 2;
    pub(crate) const END: u8 = 1 << 3;
    pub(crate) const NONCE: u8 = 1 << 4;
    pub(crate) const ALL: u8 = WEIGHT | END | NONCE | 3;
}

/// Two bits that say how a frame is written: [`RECENT`](code::RECENT), or as a difference of so many bytes.
pub(crate) mod code {
    /// The frame is in the table of recent ones: one byte, its place there.
    pub(crate) const RECENT: u8 = 0;

    /// The code of a difference.
    pub(crate) const fn of(difference: u64) -> u8 {
        1 + (difference >= 1 << 24) as u8 + (difference >= 1 << 32) as u8
    }

    /// The bytes that follow for that code.
    pub(crate) const fn len(code: u8) -> usize {
        // A byte per code.
        (0x08_04_03_01_u32 >> (8 * (code & 3)) & 0xff) as usize
    }
}

/// The place of a frame in the table of recent ones.
pub(crate) const fn recent_place(frame: u64) -> usize {
    // Fibonacci hashing: the high bits of the product depend on all bits below them.
    (frame.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - RECENT.trailing_zeros())) as usize
}

/// The distance from `base` to `frame`, small for frames of one module: flags turned to the low end, sign to the
/// lowest bit.
pub(crate) const fn difference(frame: u64, base: u64) -> u64 {
    let distance = frame.rotate_left(3).wrapping_sub(base.rotate_left(3));
    distance << 1 ^ ((distance as i64) >> 63) as u64
}

/// The frame at that distance from `base`.
pub(crate) const fn frame_at(difference: u64, base: u64) -> u64 {
    let distance = difference >> 1 ^ (difference & 1).wrapping_neg();
    base.rotate_left(3).wrapping_add(distance).rotate_right(3)
}

const _: () = assert!(RECENT.is_power_of_two() && RECENT <= 256);
