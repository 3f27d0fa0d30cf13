//! Owns the files and decompressed sections from which DWARF is read.

use std::borrow::Cow;

use gimli::{Dwarf, EndianSlice, RunTimeEndian};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection};
use typed_arena::Arena;

use super::image::Image;

/// Reads DWARF from memory that outlives it.
pub(super) type Reader<'a> = EndianSlice<'a, RunTimeEndian>;

/// Owns the bytes of DWARF while it is read.
#[derive(Default)]
pub(super) struct Storage {
    /// Further files found while reading.
    pub(super) images: Arena<Image>,
    /// Sections that are compressed in their file.
    unpacked: Arena<Vec<u8>>,
}

impl Storage {
    /// A section of a file; empty if it is missing or unreadable, because the other sections still help.
    pub(super) fn section<'a>(&'a self, file: &ElfFile64<'a, Endianness>, name: &str) -> Reader<'a> {
        let section = file.section_by_name(name);
        let bytes = match section.and_then(|section| section.uncompressed_data().ok()) {
            Some(Cow::Borrowed(bytes)) => bytes,
            Some(Cow::Owned(bytes)) => self.unpacked.alloc(bytes),
            None => &[],
        };
        EndianSlice::new(bytes, endian(file))
    }

    /// The DWARF sections of a file.
    pub(super) fn dwarf<'a>(&'a self, file: &ElfFile64<'a, Endianness>) -> Dwarf<Reader<'a>> {
        Dwarf::load(|id| Ok::<_, gimli::Error>(self.section(file, id.name()))).unwrap_or_else(|_| {
            Dwarf::load(|_| Ok::<_, gimli::Error>(EndianSlice::default())).unwrap_or_default()
        })
    }
}

/// The byte order of a file.
pub(super) fn endian(file: &ElfFile64<'_, Endianness>) -> RunTimeEndian {
    match file.endian() {
        Endianness::Little => RunTimeEndian::Little,
        Endianness::Big => RunTimeEndian::Big,
    }
}
