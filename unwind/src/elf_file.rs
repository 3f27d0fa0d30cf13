//! Finds the unwind sections of an ELF file by its section headers: for modules without `.eh_frame_hdr` in memory, and
//! for compiling tables from files. Every offset is checked against the file.

use crate::arch::Machine;
use crate::elf_image;
use crate::go_table;
use crate::section::Section;
use crate::table::{u32_at, u64_at};

const SHT_NOTE: u32 = 7;
const SHT_NOBITS: u32 = 8;
const SHF_EXECINSTR: u64 = 4;
const SHF_COMPRESSED: u64 = 1 << 11;
const SHDR_SIZE: usize = 64;

/// Why a file cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElfError {
    /// Not an ELF file.
    NotElf,
    /// An ELF file of another class or byte order, or for an unsupported machine.
    OtherMachine,
    /// A section header points outside the file.
    Truncated,
}

impl core::fmt::Display for ElfError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            ElfError::NotElf => "not an ELF file",
            ElfError::OtherMachine => "an ELF file for another machine",
            ElfError::Truncated => "section headers missing or cut off",
        })
    }
}

impl core::error::Error for ElfError {}

/// The sections that unwinding needs. Addresses are virtual addresses of the file.
#[derive(Clone, Copy, Debug)]
pub struct ElfFile<'a> {
    /// Its machine.
    pub machine: Machine,
    /// `.eh_frame`, with its exact size.
    pub eh_frame: Option<Section<'a>>,
    /// `.debug_frame`. It holds virtual addresses, whatever the address of the section itself.
    pub debug_frame: Option<Section<'a>>,
    /// `.gopclntab`, the table of a Go program.
    pub go_table: Option<&'a [u8]>,
    /// `.eh_frame_hdr`.
    pub eh_frame_hdr: Option<Section<'a>>,
    /// The GNU build-id.
    pub build_id: Option<&'a [u8]>,
    /// First address of the executable sections; equal to `text_end` when there are none.
    pub text_start: u64,
    /// First address after the executable sections.
    pub text_end: u64,
    /// Entry point; 0 if there is none.
    pub entry: u64,
}

struct SectionHeader<'a> {
    name: &'a [u8],
    kind: u32,
    flags: u64,
    address: u64,
    offset: u64,
    size: u64,
    alignment: u64,
}

impl<'a> ElfFile<'a> {
    /// Finds the sections of a file with these contents. Sections that are compressed, or absent as in separate debug
    /// files, are `None`.
    pub fn parse(file: &'a [u8]) -> Result<Self, ElfError> {
        if !file.starts_with(b"\x7fELF") {
            return Err(ElfError::NotElf);
        }
        let machine = file.get(18..).and_then(|rest| rest.first_chunk()).ok_or(ElfError::Truncated)?;
        match Machine::from_elf(u16::from_le_bytes(*machine)) {
            Some(machine) if file.starts_with(b"\x7fELF\x02\x01") => {
                Self::from_sections(file, machine).ok_or(ElfError::Truncated)
            }
            _ => Err(ElfError::OtherMachine),
        }
    }

    fn from_sections(file: &'a [u8], machine: Machine) -> Option<Self> {
        let table = usize::try_from(u64_at(file, 40)?).ok()?;
        let headers = file.get(table..)?;
        let sizes = u64_at(file, 56)?;
        let (entry_size, count, names) = ((sizes >> 16) as u16, (sizes >> 32) as u16, (sizes >> 48) as u16);
        if usize::from(entry_size) != SHDR_SIZE {
            return None;
        }
        // Counts that do not fit the file header are in the first section header.
        let count = if count == 0 { usize::try_from(u64_at(headers, 32)?).ok()? } else { usize::from(count) };
        let names = if names == u16::MAX { u32_at(headers, 40)? as usize } else { usize::from(names) };
        let headers = headers.get(..count.checked_mul(SHDR_SIZE)?)?.as_chunks::<SHDR_SIZE>().0;
        let names = contents(file, &section_header(headers.get(names)?, &[])?)?;
        let mut found = ElfFile {
            machine,
            eh_frame: None,
            debug_frame: None,
            go_table: None,
            eh_frame_hdr: None,
            build_id: None,
            text_start: u64::MAX,
            text_end: 0,
            entry: u64_at(file, 24)?,
        };
        for header in headers {
            found.take_in(file, &section_header(header, names)?);
        }
        found.text_start = found.text_start.min(found.text_end);
        Some(found)
    }

    fn take_in(&mut self, file: &'a [u8], header: &SectionHeader<'a>) {
        if header.flags & SHF_EXECINSTR != 0 {
            self.text_start = self.text_start.min(header.address);
            self.text_end = self.text_end.max(header.address.saturating_add(header.size));
        }
        let Some(bytes) = contents(file, header) else { return };
        let section = Section { bytes, address: header.address };
        match header.name {
            b".eh_frame" => self.eh_frame = Some(section),
            b".debug_frame" => self.debug_frame = Some(section),
            name if name.ends_with(go_table::SECTION.as_bytes()) => self.go_table = Some(bytes),
            b".eh_frame_hdr" => self.eh_frame_hdr = Some(section),
            _ if header.kind == SHT_NOTE => {
                self.build_id = self.build_id.or_else(|| elf_image::build_id(bytes, header.alignment));
            }
            _ => {}
        }
    }
}

fn section_header<'a>(bytes: &[u8; SHDR_SIZE], names: &'a [u8]) -> Option<SectionHeader<'a>> {
    let name = names.get(u32_at(bytes, 0)? as usize..).unwrap_or(&[]);
    let name_end = name.iter().position(|&byte| byte == 0).unwrap_or(0);
    Some(SectionHeader {
        name: name.get(..name_end)?,
        kind: u32_at(bytes, 4)?,
        flags: u64_at(bytes, 8)?,
        address: u64_at(bytes, 16)?,
        offset: u64_at(bytes, 24)?,
        size: u64_at(bytes, 32)?,
        alignment: u64_at(bytes, 48)?,
    })
}

fn contents<'a>(file: &'a [u8], header: &SectionHeader<'_>) -> Option<&'a [u8]> {
    if header.kind == SHT_NOBITS || header.flags & SHF_COMPRESSED != 0 {
        return None;
    }
    let start = usize::try_from(header.offset).ok()?;
    file.get(start..start.checked_add(usize::try_from(header.size).ok()?)?)
}
