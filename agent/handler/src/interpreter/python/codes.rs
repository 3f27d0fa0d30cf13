//! The identity of code objects, and the cache of those that a thread has met.

use super::descriptor::Python;
use super::unreadable::Unreadable;
use crate::arch::load;
use crate::interpreter::memory::Memory;

/// The identity of a code object.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) address: u64,
    pub(super) name: u64,
    pub(super) file: u64,
    pub(super) lines: u64,
    pub(super) name_hash: u64,
    pub(super) first_line: u32,
}

/// The code objects that a thread has met, by address, with their function numbers. Before a hit counts, the object is read
/// again and compared.
pub(crate) struct Codes {
    /// The nonce of the region for which the function numbers are valid.
    nonce: u64,
    addresses: [[u64; WAYS]; SETS],
    known: [[(Code, u32); WAYS]; SETS],
    /// The way to replace next.
    next: usize,
}

/// A power of two.
const SETS: usize = 64;
const WAYS: usize = 4;

impl Codes {
    /// Forgets what belongs to another region.
    pub(super) fn begin(&mut self, nonce: u64) {
        if self.nonce != nonce {
            self.nonce = nonce;
            self.addresses.fill([0; WAYS]);
        }
    }

    #[inline]
    fn set(address: u64) -> usize {
        // Objects are aligned to 16 bytes.
        ((address >> 4) ^ (address >> 10) ^ (address >> 16)) as usize % SETS
    }

    #[inline]
    pub(super) fn find(&self, address: u64) -> Option<&(Code, u32)> {
        let set = Self::set(address);
        let way = self.addresses.get(set)?.iter().position(|known| *known == address)?;
        self.known.get(set)?.get(way)
    }

    /// Whether a code object at this address has been met.
    #[inline]
    pub(super) fn have(&self, address: u64) -> bool {
        self.addresses.get(Self::set(address)).is_some_and(|set| set.contains(&address))
    }

    #[inline(never)]
    pub(super) fn remember(&mut self, code: Code, number: u32) {
        let set = Self::set(code.address);
        let Some(addresses) = self.addresses.get_mut(set) else { return };
        let own = addresses.iter().position(|known| *known == code.address);
        let way = own.or_else(|| addresses.iter().position(|known| *known == 0)).unwrap_or(self.next % WAYS);
        self.next = self.next.wrapping_add(1);
        if let (Some(address), Some(known)) =
            (addresses.get_mut(way), self.known.get_mut(set).and_then(|set| set.get_mut(way)))
        {
            (*address, *known) = (code.address, (code, number));
        }
    }
}

impl Code {
    /// True if the object at the address still has this identity.
    ///
    /// # Safety
    /// The address must be that of the code object of a complete frame, whose thread is paused.
    #[inline]
    pub(super) unsafe fn stands(&self, python: &Python) -> bool {
        let layout = &python.layout;
        // SAFETY: the frame refers to a live object. If that is a code object that is not being freed, its name is alive too.
        let field = |base: u64, offset: u16| unsafe { load(base.wrapping_add(offset.into())) };
        let own = |offset: u16| field(self.address, offset);
        own(layout.object_type - 8) != 0
            && own(layout.object_type) == python.code_type
            && own(layout.code_name) == self.name
            && own(layout.code_file) == self.file
            && own(layout.code_lines) == self.lines
            && (own(layout.code_first_line & !7) >> (layout.code_first_line % 8 * 8)) as u32
                == self.first_line
            && field(self.name, layout.string_hash) == self.name_hash
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
        let name_hash = field(name, layout.string_hash)?;
        let first_line = memory.half(address, layout.code_first_line).ok_or(Unreadable)?;
        Ok(Some(Code { address, name, file, lines, name_hash, first_line }))
    }
}
