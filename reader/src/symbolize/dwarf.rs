//! Lines and inlined functions from DWARF.

use std::borrow::Cow;

use gimli::{DwarfSections, EndianSlice, RunTimeEndian, SectionId};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection};

/// The DWARF sections of a file, decompressed where needed.
pub(super) type Sections<'data> = DwarfSections<Cow<'data, [u8]>>;
type Reader<'a> = EndianSlice<'a, RunTimeEndian>;

/// Whether a file has DWARF of its own.
pub(super) fn is_in(file: &ElfFile64<'_, Endianness>) -> bool {
    [".debug_info", ".zdebug_info"]
        .iter()
        .any(|name| file.section_by_name(name).is_some_and(|s| s.file_range_len() > 0))
}

/// Bytes a section takes in its file: none for the empty shells in separate debug files.
trait FileRange {
    fn file_range_len(&self) -> u64;
}

impl<'data, S: ObjectSection<'data>> FileRange for S {
    fn file_range_len(&self) -> u64 {
        self.file_range().map_or(0, |(_, len)| len)
    }
}

/// Reads the DWARF sections. A section that cannot be read counts as empty: the rest still helps.
pub(super) fn sections<'data>(file: &ElfFile64<'data, Endianness>) -> Sections<'data> {
    let load = |id: SectionId| -> Result<Cow<'data, [u8]>, gimli::Error> {
        let section = file.section_by_name(id.name());
        Ok(section.and_then(|section| section.uncompressed_data().ok()).unwrap_or_default())
    };
    DwarfSections::load(load).unwrap_or_default()
}

/// One function at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    /// Linker name, else the plain one; absent if DWARF knows the line only.
    pub name: Option<String>,
    /// Source file and line.
    pub file: Option<String>,
    /// Line, counted from 1.
    pub line: Option<u32>,
}

/// DWARF ready for lookups.
pub(super) struct Lines<'a>(addr2line::Context<Reader<'a>>);

impl<'a> Lines<'a> {
    /// Indexes the units; `None` if that fails.
    pub(super) fn new(
        sections: &'a Sections<'_>,
        supplementary: Option<&'a Sections<'_>>,
        endian: Endianness,
    ) -> Option<Self> {
        let endian = match endian {
            Endianness::Little => RunTimeEndian::Little,
            Endianness::Big => RunTimeEndian::Big,
        };
        let mut dwarf = sections.borrow(|bytes| EndianSlice::new(bytes, endian));
        if let Some(sup) = supplementary {
            dwarf.set_sup(sup.borrow(|bytes| EndianSlice::new(bytes, endian)));
        }
        addr2line::Context::from_dwarf(dwarf).ok().map(Lines)
    }

    /// The functions at a virtual address, innermost first; the last one is the function that holds the
    /// code. Empty if DWARF does not know the address.
    pub(super) fn calls(&self, address: u64) -> Vec<Call> {
        let mut calls = Vec::new();
        let Ok(mut frames) = self.0.find_frames(address).skip_all_loads() else { return calls };
        while let Ok(Some(frame)) = frames.next() {
            let location = frame.location.as_ref();
            calls.push(Call {
                name: frame.function.and_then(|name| name.raw_name().ok().map(Cow::into_owned)),
                file: location.and_then(|l| l.file.map(str::to_owned)),
                line: location.and_then(|l| l.line).filter(|&line| line != 0),
            });
        }
        calls
    }
}
