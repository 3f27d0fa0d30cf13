//! The identity of code objects, and the cache of those that a thread has met.

use platform::arch::load_field;

use super::descriptor::Python;
use super::string::Identity;
use super::unreadable::Unreadable;
use crate::memory::Memory;

/// The identity of a code object. Memory is reused for objects with the same addresses, lines and sizes, which differ in the text
/// of the names only.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) address: u64,
    pub(super) name: u64,
    pub(super) file: u64,
    pub(super) lines: u64,
    pub(super) name_identity: Identity,
    pub(super) file_identity: Identity,
    pub(super) first_line: u32,
    /// The words of a frame that runs it; 0 where frames are objects.
    pub(super) words: u32,
}

/// Upper bound of the words of a frame.
const LARGEST: u64 = 1 << 24;

/// The place of a code object in the cache: a guess that is checked.
pub(super) type Place = u16;

/// The code objects that a thread has met, by address, with their function numbers. Before a hit counts, the object is read
/// again and compared.
pub(crate) struct Codes {
    /// The nonce of the region for which the function numbers are valid.
    nonce: u64,
    addresses: [[u64; WAYS]; SETS],
    /// By [`Place`]: the ways of each set.
    known: [(Code, u32); SETS * WAYS],
    /// The way to replace next.
    next: usize,
}

/// A power of two.
const SETS: usize = 64;
const WAYS: usize = 4;

impl Codes {
    /// Begins a walk. Forgets what belongs to another region.
    pub(super) fn begin(&mut self, nonce: u64) {
        if self.nonce != nonce {
            self.nonce = nonce;
            self.addresses.fill([0; WAYS]);
            self.known.fill(<(Code, u32)>::default());
        }
    }

    #[inline]
    fn set(address: u64) -> usize {
        // Objects are aligned to 16 bytes.
        ((address >> 4) ^ (address >> 10) ^ (address >> 16)) as usize % SETS
    }

    /// The place of the code object that was met at this address.
    #[inline]
    pub(super) fn place(&self, address: u64) -> Option<Place> {
        let set = Self::set(address);
        let way = self.addresses.get(set)?.iter().position(|known| *known == address)?;
        Some((set * WAYS + way) as Place)
    }

    /// What is known of the code object at `address`, if it is kept at this place.
    #[inline]
    pub(super) fn at(&self, place: Place, address: u64) -> Option<&(Code, u32)> {
        self.known.get(usize::from(place)).filter(|(code, _)| code.address == address && address != 0)
    }

    #[inline(never)]
    pub(super) fn remember(&mut self, code: Code, number: u32) {
        let set = Self::set(code.address);
        let Some(addresses) = self.addresses.get_mut(set) else { return };
        let own = addresses.iter().position(|known| *known == code.address);
        let way = own.or_else(|| addresses.iter().position(|known| *known == 0)).unwrap_or(self.next % WAYS);
        self.next = self.next.wrapping_add(1);
        if let (Some(address), Some(known)) = (addresses.get_mut(way), self.known.get_mut(set * WAYS + way)) {
            (*address, *known) = (code.address, (code, number));
        }
    }
}

impl Code {
    /// Whether the object at the address still has this identity.
    ///
    /// # Safety
    /// The address must be that of the code object of a complete frame, whose thread is paused.
    #[inline]
    pub(super) unsafe fn is_unchanged(&self, python: &Python) -> bool {
        let layout = &python.layout;
        // SAFETY: the frame refers to a live object. If that is a code object that is not being freed, its name and file are
        // alive too.
        let field = |base: u64, offset: u16| unsafe { load_field(base, offset) };
        let own = |offset: u16| field(self.address, offset);
        own(layout.object_type - 8) != 0
            && own(layout.object_type) == python.code_type
            && own(layout.code_name) == self.name
            && own(layout.code_file) == self.file
            && own(layout.code_lines) == self.lines
            && (own(layout.code_first_line & !7) >> (layout.code_first_line % 8 * 8)) as u32
                == self.first_line
            // SAFETY: the names that were just read.
            && unsafe { self.name_identity.is_of(layout, self.name) && self.file_identity.is_of(layout, self.file) }
    }

    /// Whether frames that run it still have as many words.
    ///
    /// # Safety
    /// As for [`is_unchanged`](Self::is_unchanged).
    #[inline]
    pub(super) unsafe fn has_its_words(&self, python: &Python) -> bool {
        // SAFETY: the caller's promise. These fields lie in the middle of the object.
        let field = |offset: u16| unsafe { load_field(self.address, offset) };
        Self::frame_words(python, |offset| Some(field(offset) as u32)) == Some(self.words)
    }

    /// Reads the code object at an address; `None` if its code is the interpreter's own, which has no name.
    pub(super) fn read(
        python: &Python,
        memory: &mut Memory<'_>,
        address: u64,
    ) -> Result<Option<Code>, Unreadable> {
        let layout = &python.layout;
        let mut field = |base, offset| memory.field(base, offset).ok_or(Unreadable);
        if field(address, layout.object_type)? != python.code_type {
            return Err(Unreadable);
        }
        let name = field(address, layout.code_name)?;
        if name == 0 {
            return Ok(None);
        }
        let file = field(address, layout.code_file)?;
        let lines = field(address, layout.code_lines)?;
        let name_identity = Identity::read(layout, name, memory).ok_or(Unreadable)?;
        let file_identity = Identity::read(layout, file, memory).ok_or(Unreadable)?;
        let first_line = memory.half(address, layout.code_first_line).ok_or(Unreadable)?;
        let words = match layout.frame_words {
            0 => 0,
            _ => Self::frame_words(python, |offset| memory.half(address, offset)).ok_or(Unreadable)?,
        };
        Ok(Some(Code { address, name, file, lines, name_identity, file_identity, first_line, words }))
    }

    /// The words of a frame that runs the code whose fields of 32 bits `half` reads; `None` if there are too many.
    #[inline]
    pub(super) fn frame_words(python: &Python, mut half: impl FnMut(u16) -> Option<u32>) -> Option<u32> {
        let layout = &python.layout;
        let (stack, local) = (half(layout.code_stack_words)?, half(layout.code_local_words)?);
        let words = u64::from(stack) + u64::from(local) + u64::from(layout.frame_words);
        (words < LARGEST).then_some(words as u32)
    }
}
