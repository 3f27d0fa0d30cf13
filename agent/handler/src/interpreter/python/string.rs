//! String objects, as names in code are: their text, and what tells one from others that had its memory before.

use python_layout::Layout;

use crate::arch::load_field;
use crate::interpreter::memory::Memory;

/// Of a longer text, the characters up to here count as the last ones.
const FAR: u64 = 4096;

/// The interpreter has not computed the hash.
const UNKNOWN: u64 = u64::MAX;

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
        match unsafe { load_field(string, layout.string_hash) } {
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
        let word = |offset: u16| Some(unsafe { load_field(string, offset) });
        Self(ends(layout, word).unwrap_or(0))
    }

    /// All of it.
    pub(super) fn word(self) -> u64 {
        self.0
    }
}

/// The length and the last characters.
#[inline]
fn ends(layout: &Layout, mut word: impl FnMut(u16) -> Option<u64>) -> Option<u64> {
    let Some((start, width)) = layout.text(word(layout.string_state)?) else { return Some(0) };
    let length = word(layout.string_length)?;
    let bytes = length.saturating_mul(width.into()).min(FAR) as u16;
    // Of a shorter text, without what follows it.
    let beyond = 8 * u32::from(8u16.saturating_sub(bytes));
    let last = word(start + bytes.saturating_sub(8))?.checked_shl(beyond).unwrap_or(0);
    Some(last ^ length.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Copies as many characters of a string as fit. Returns their width, too.
pub(super) fn copy<'r>(
    layout: &Layout,
    memory: &mut Memory<'_>,
    address: u64,
    room: &'r mut [u8],
) -> Option<(&'r [u8], u32)> {
    let (start, width) = layout.text(memory.field(address, layout.string_state)?)?;
    let length = memory.field(address, layout.string_length)?.checked_mul(width.into())?;
    let count = usize::try_from(length).ok()?.min(room.len());
    let room = room.get_mut(..count)?;
    memory.copy(address.checked_add(start.into())?, room)?;
    Some((room, width))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ASCII string without a hash, as 3.12 has it, in memory that held `before`.
    fn string(text: &str, before: u8) -> [u64; 16] {
        let mut rest = text.bytes().chain([0]).chain(core::iter::repeat(before));
        core::array::from_fn(|word| match word {
            2 => text.len() as u64,
            3 => UNKNOWN,
            4 => 1 << 2 | 1 << 5 | 1 << 6,
            5.. => u64::from_le_bytes(core::array::from_fn(|_| rest.next().unwrap_or(0))),
            _ => 0,
        })
    }

    fn identity(object: &[u64; 16]) -> Identity {
        let layout = Layout::of_minor(12).unwrap();
        // SAFETY: the object is a string.
        unsafe { Identity::of(&layout, object.as_ptr() as u64) }
    }

    #[test]
    fn strings_without_a_hash_are_told_apart_by_their_ends() {
        let texts = ["", "f", "g", "ff", "f_000001", "f_000002", "Some.f_000001", "Some_.f_000001"];
        for (number, text) in texts.iter().enumerate() {
            assert!(
                identity(&string(text, 0)) == identity(&string(text, 0xa5)),
                "{text}: by what was there before"
            );
            for other in texts.iter().take(number) {
                assert!(identity(&string(text, 7)) != identity(&string(other, 7)), "{text} {other}");
            }
        }
    }

    #[test]
    fn a_hash_that_is_known_counts_alone() {
        let (mut one, mut other) = (string("one", 0), string("other", 0));
        (one[3], other[3]) = (5, 5);
        assert!(identity(&one) == identity(&other));
    }
}
