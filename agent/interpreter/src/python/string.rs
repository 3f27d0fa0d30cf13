//! String objects, as names in code are: their text, and what tells one from others that had its memory before.

use platform::arch::load_field;
use python_layout::Layout;

use crate::memory::Memory;

/// Of a longer text, the characters up to here count as the last ones.
const FAR: u64 = 4096;

/// The interpreter has not computed the hash.
const UNKNOWN: u64 = u64::MAX;

/// Size of a word in bytes.
const WORD: u16 = 8;

/// What tells a string from others that had its memory before: the interpreter's hash or, if that has not been computed, as of
/// qualified names before 3.13 and of files, the length and the last characters.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Identity {
    word: u64,
    ends: Ends,
}

/// Where the length and the last characters of a string without a hash are: in an object with the same state and length they
/// are in the same place. All zero if there is a hash, or if its text is elsewhere.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Ends {
    state: u32,
    length: u32,
    /// The offset of the last word.
    last: u16,
    /// Bits of that word that follow the text, if it is shorter; at most 63.
    beyond: u8,
}

impl Identity {
    /// Reads that of what should be a string.
    #[inline(never)]
    pub(super) fn read(layout: &Layout, string: u64, memory: &mut Memory<'_>) -> Option<Self> {
        Self::of_words(layout, |offset| memory.field(string, offset))
    }

    /// That of the string whose words `word` reads.
    #[inline]
    fn of_words(layout: &Layout, mut word: impl FnMut(u16) -> Option<u64>) -> Option<Self> {
        match word(layout.string_hash)? {
            UNKNOWN => {
                let Some(ends) = Ends::of_words(layout, &mut word)? else { return Some(Self::default()) };
                Some(Self { word: ends.text(word(ends.last)?), ends })
            }
            hash => Some(Self { word: hash, ends: Ends::default() }),
        }
    }

    /// Whether it is that of the string at an address.
    ///
    /// # Safety
    /// There must be one, which nobody frees meanwhile.
    #[inline(always)]
    pub(super) unsafe fn is_of(&self, layout: &Layout, string: u64) -> bool {
        // SAFETY: fields of the string, and its last word, which is there in every string of this state and length.
        let field = |offset: u16| unsafe { load_field(string, offset) };
        let hash = field(layout.string_hash);
        if hash != UNKNOWN {
            return self.word == hash && self.ends.last == 0;
        }
        let Ends { state, length, last, .. } = self.ends;
        field(layout.string_state) as u32 == state
            && field(layout.string_length) == u64::from(length)
            && last != 0
            && self.ends.text(field(last)) == self.word
    }

    /// All of it.
    pub(super) fn word(self) -> u64 {
        self.word ^ u64::from(self.ends.length).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl Ends {
    /// Of the string whose words `word` reads; the inner `None` if its text is elsewhere or too long.
    #[inline]
    fn of_words(layout: &Layout, mut word: impl FnMut(u16) -> Option<u64>) -> Option<Option<Self>> {
        let state = word(layout.string_state)?;
        let Some((start, width)) = layout.text(state) else { return Some(None) };
        let Ok(length) = u32::try_from(word(layout.string_length)?) else { return Some(None) };
        let bytes = u64::from(length).saturating_mul(width.into()).min(FAR) as u16;
        let last = start + bytes.saturating_sub(WORD);
        // A bit of the zero that ends it is left of an empty text.
        let beyond = (8 * WORD.saturating_sub(bytes) as u8).min(63);
        Some(Some(Self { state: state as u32, length, last, beyond }))
    }

    /// The last characters, out of the last word: of a shorter text without what follows it.
    #[inline(always)]
    fn text(self, last: u64) -> u64 {
        last << self.beyond
    }
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
    extern crate std;

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
        let bytes: std::vec::Vec<u8> = object.iter().flat_map(|word| word.to_le_bytes()).collect();
        let word = |offset: u16| Some(u64::from_le_bytes(*bytes.get(usize::from(offset)..)?.first_chunk()?));
        let identity = Identity::of_words(&layout, word).unwrap();
        assert!(is(identity, object));
        identity
    }

    fn is(identity: Identity, object: &[u64; 16]) -> bool {
        let layout = Layout::of_minor(12).unwrap();
        // SAFETY: the object is a string.
        unsafe { identity.is_of(&layout, object.as_ptr() as u64) }
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
                let (one, other) = (string(text, 7), string(other, 7));
                assert!(identity(&one).word() != identity(&other).word(), "{text}");
                assert!(!is(identity(&one), &other) && !is(identity(&other), &one), "{text}");
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
