//! String objects, as names in code are: their text, and a hash of it.

use super::layout::Layout;
use crate::arch::load;
use crate::interpreter::memory::Memory;

/// The end of a longer text is not looked for.
const FAR: u64 = 4096;

/// The interpreter has not computed the hash.
const UNKNOWN: u64 = u64::MAX;

/// Where the text of a string begins in its object, and its width, 1, 2 or 4 bytes a character; `None` if it is elsewhere. Names in
/// code come from the compiler or from its files: all have this form.
#[inline]
fn place(layout: &Layout, state: u64) -> Option<(u16, u32)> {
    const COMPACT: u32 = 1 << 3;
    const ASCII: u32 = 1 << 4;
    let state = state as u32 >> layout.string_kind_bit;
    let width = state & 7;
    let start = if state & ASCII != 0 { layout.string_ascii } else { layout.string_compact };
    (state & COMPACT != 0 && matches!(width, 1 | 2 | 4)).then_some((start, width))
}

/// What tells a string from others that had its memory before: the interpreter's hash or, if that has not been computed, as of
/// qualified names before 3.13 and of files, the length and the last characters.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Identity(u64);

impl Identity {
    /// Reads that of what should be a string.
    #[inline(never)]
    pub(super) fn read(layout: &Layout, string: u64, memory: &mut Memory<'_>) -> Option<Self> {
        match memory.field(string, layout.string_hash)? {
            UNKNOWN => ends(layout, |offset| memory.field(string, offset)).map(Self),
            hash => Some(Self(hash)),
        }
    }

    /// That of the string at an address.
    ///
    /// # Safety
    /// There must be one, which nobody frees meanwhile.
    #[inline(always)]
    pub(super) unsafe fn of(layout: &Layout, string: u64) -> Self {
        // SAFETY: a field of the string.
        match unsafe { load(string.wrapping_add(layout.string_hash.into())) } {
            // SAFETY: the caller's promise.
            UNKNOWN => unsafe { Self::of_unhashed(layout, string) },
            hash => Self(hash),
        }
    }

    /// # Safety
    /// As for [`of`](Self::of).
    #[inline(never)]
    unsafe fn of_unhashed(layout: &Layout, string: u64) -> Self {
        // SAFETY: fields of the string, and words of its text.
        let word = |offset: u16| Some(unsafe { load(string.wrapping_add(offset.into())) });
        Self(ends(layout, word).unwrap_or(0))
    }

    /// All of it.
    pub(super) fn word(self) -> u64 {
        self.0
    }
}

#[inline]
fn ends(layout: &Layout, mut word: impl FnMut(u16) -> Option<u64>) -> Option<u64> {
    let Some((start, width)) = place(layout, word(layout.string_state)?) else { return Some(0) };
    let length = word(layout.string_length)?;
    let bytes = length.saturating_mul(width.into()).min(FAR) as u16;
    let last = word(start + bytes.saturating_sub(8))?;
    Some(last.rotate_left(8 * u32::from(bytes)) ^ length)
}

/// Copies as many characters of a string as fit. Returns their width, too.
pub(super) fn copy<'r>(
    layout: &Layout,
    memory: &mut Memory<'_>,
    address: u64,
    room: &'r mut [u8],
) -> Option<(&'r [u8], u32)> {
    let (start, width) = place(layout, memory.field(address, layout.string_state)?)?;
    let length = memory.field(address, layout.string_length)?.checked_mul(width.into())?;
    let count = usize::try_from(length).ok()?.min(room.len());
    let room = room.get_mut(..count)?;
    memory.copy(address.checked_add(start.into())?, room)?;
    Some((room, width))
}
