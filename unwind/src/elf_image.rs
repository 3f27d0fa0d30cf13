//! Finds the unwind sections of a loaded ELF object in memory, by its program headers.
//!
//! Section headers are not loaded, so only `PT_LOAD`, `PT_GNU_EH_FRAME` and `PT_NOTE` are used (ELF-64, System V gABI
//! chapter 5). Runs when a module is registered, not in the handler; still, it must not allocate.

use crate::cfi;
use crate::module::Module;
use crate::section::Section;
use crate::table::{u32_at, u64_at};

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;
const EHDR_SIZE: u64 = 64;

/// `Elf64_Phdr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ProgramHeader {
    /// `p_type`.
    pub kind: u32,
    /// `p_flags`.
    pub flags: u32,
    /// `p_offset`: file offset.
    pub offset: u64,
    /// `p_vaddr`: virtual address.
    pub address: u64,
    /// `p_paddr`, unused.
    pub physical: u64,
    /// `p_filesz`: bytes in the file.
    pub file_size: u64,
    /// `p_memsz`: bytes in memory.
    pub memory_size: u64,
    /// `p_align`.
    pub alignment: u64,
}

const _: () = assert!(size_of::<ProgramHeader>() == 56);

/// A loaded object. Addresses are those of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct ElfImage<'a> {
    /// First address of all segments.
    pub start: u64,
    /// First address after all segments.
    pub end: u64,
    /// First address of the executable segments; equal to `text_end` when there are none.
    pub text_start: u64,
    /// First address after the executable segments.
    pub text_end: u64,
    /// First address of the largest writable segment; equal to `data_end` when there is none.
    pub data_start: u64,
    /// First address after that segment.
    pub data_end: u64,
    /// Load bias: address minus virtual address.
    pub bias: u64,
    /// Address of the entry point; 0 if there is none.
    pub entry: u64,
    /// `.eh_frame_hdr`.
    pub eh_frame_hdr: Option<Section<'a>>,
    /// `.eh_frame`, possibly extended to the end of its segment; see [`ElfImage::trimmed_eh_frame`].
    pub eh_frame: Option<Section<'a>>,
    /// The GNU build-id.
    pub build_id: Option<&'a [u8]>,
}

impl<'a> ElfImage<'a> {
    /// Describes the object with these program headers and this load `bias`, as `dl_iterate_phdr` reports them. `None`
    /// if it has no PT_LOAD segment.
    ///
    /// # Safety
    ///
    /// For all of `'a` the object must stay mapped at `bias` as the headers say, and its read-only segments must not
    /// change.
    pub unsafe fn from_headers(bias: u64, headers: &[ProgramHeader]) -> Option<Self> {
        let mut image = ElfImage { bias, start: u64::MAX, text_start: u64::MAX, ..ElfImage::default() };
        for header in headers.iter().filter(|header| header.kind == PT_LOAD) {
            let start = bias.wrapping_add(header.address);
            let end = start.checked_add(header.memory_size)?;
            image.start = image.start.min(start);
            image.end = image.end.max(end);
            if header.flags & PF_X != 0 {
                image.text_start = image.text_start.min(start);
                image.text_end = image.text_end.max(end);
            }
            if header.flags & PF_W != 0 && end - start > image.data_end - image.data_start {
                (image.data_start, image.data_end) = (start, end);
            }
        }
        if image.start >= image.end {
            return None;
        }
        image.text_start = image.text_start.min(image.text_end);
        // SAFETY: the caller promises that the segments stay mapped for 'a as the headers say.
        let bytes = |address, limit| unsafe { segment_bytes(bias, headers, address, limit) };
        image.entry = entry(bias, headers, bytes);
        let of_kind = |kind| headers.iter().filter(move |header| header.kind == kind);
        image.eh_frame_hdr = of_kind(PT_GNU_EH_FRAME).next().and_then(|header| {
            let address = bias.wrapping_add(header.address);
            Some(Section { bytes: bytes(address, header.memory_size)?, address })
        });
        image.eh_frame = image.eh_frame_hdr.and_then(|header| {
            let address = cfi::eh_frame_address(header)?;
            Some(Section { bytes: bytes(address, u64::MAX)?, address })
        });
        image.build_id = of_kind(PT_NOTE).find_map(|header| {
            build_id(bytes(bias.wrapping_add(header.address), header.memory_size)?, header.alignment)
        });
        Some(image)
    }

    /// Describes the object whose ELF header is at `address` (the vdso). `None` if there is no ELF header.
    ///
    /// # Safety
    ///
    /// At least 64 bytes at `address` must be readable. If they are an ELF header, it must be the first page of a
    /// loaded object, for which the conditions of [`ElfImage::from_headers`] hold.
    pub unsafe fn from_memory(address: u64) -> Option<Self> {
        // SAFETY: the caller promises 64 readable bytes.
        let ehdr = unsafe { slice(address, EHDR_SIZE) }?;
        if !ehdr.starts_with(b"\x7fELF\x02\x01")
            || ehdr.get(54..56)? != (size_of::<ProgramHeader>() as u16).to_le_bytes()
        {
            return None;
        }
        let table = address.checked_add(u64_at(ehdr, 32)?)?;
        let count = u16::from_le_bytes(*ehdr.get(56..)?.first_chunk()?);
        if table % align_of::<ProgramHeader>() as u64 != 0 {
            return None;
        }
        // SAFETY: the first page of a loaded object contains its program headers, at this offset and of this size. The
        // alignment was checked, and every bit pattern is a valid header.
        let headers = unsafe {
            core::slice::from_raw_parts(table as usize as *const ProgramHeader, usize::from(count))
        };
        let first = headers.iter().find(|header| header.kind == PT_LOAD)?;
        let bias = address.wrapping_sub(first.address.wrapping_sub(first.offset));
        // SAFETY: the caller's promise covers `from_headers`.
        unsafe { Self::from_headers(bias, headers) }
    }

    /// The module for the walker, with its sections used in place.
    pub fn module(&self) -> Module<'a> {
        Module {
            start: self.text_start,
            end: self.text_end,
            bias: self.bias,
            entry: self.entry,
            eh_frame_hdr: self.eh_frame_hdr,
            eh_frame: self.eh_frame,
            table: None,
            late: None,
        }
    }

    /// `.eh_frame` up to and including its terminator: the part that a private copy needs. Reads every entry's length.
    pub fn trimmed_eh_frame(&self) -> Option<Section<'a>> {
        let section = self.eh_frame?;
        let end = cfi::entries(section).last().map_or(0, |extent| extent.end);
        Some(Section { bytes: section.bytes.get(..end)?, address: section.address })
    }
}

/// The entry point from the ELF header, if a segment maps that.
fn entry<'a>(bias: u64, headers: &[ProgramHeader], bytes: impl Fn(u64, u64) -> Option<&'a [u8]>) -> u64 {
    let first = headers.iter().find(|header| header.kind == PT_LOAD && header.offset == 0);
    let ehdr = first.and_then(|header| bytes(bias.wrapping_add(header.address), EHDR_SIZE));
    match ehdr.filter(|ehdr| ehdr.starts_with(b"\x7fELF\x02\x01")).and_then(|ehdr| u64_at(ehdr, 24)) {
        Some(0) | None => 0,
        Some(entry) => bias.wrapping_add(entry),
    }
}

/// The bytes from `address` up to `limit`, clamped to the file-backed part of the readable segment that contains them.
///
/// # Safety
///
/// The segments must stay mapped for `'a` as the headers say.
unsafe fn segment_bytes<'a>(
    bias: u64,
    headers: &[ProgramHeader],
    address: u64,
    limit: u64,
) -> Option<&'a [u8]> {
    let left = headers.iter().find_map(|header| {
        let offset = address.checked_sub(bias.wrapping_add(header.address))?;
        let readable = header.kind == PT_LOAD && header.flags & PF_R != 0;
        if readable && offset < header.file_size { header.file_size.checked_sub(offset) } else { None }
    })?;
    // SAFETY: the bytes lie in one readable segment, which the caller promises to keep mapped for 'a.
    unsafe { slice(address, left.min(limit)) }
}

/// # Safety
///
/// The bytes must be readable and must not change during `'a`.
unsafe fn slice<'a>(address: u64, length: u64) -> Option<&'a [u8]> {
    let length = usize::try_from(length).ok()?;
    if address == 0 || address.checked_add(length as u64)? > isize::MAX as u64 {
        return None;
    }
    // SAFETY: the caller promises readable, unchanging bytes; the address is not null and the length fits an isize.
    Some(unsafe { core::slice::from_raw_parts(address as usize as *const u8, length) })
}

/// The build-id in a note segment or section.
pub(crate) fn build_id(notes: &[u8], alignment: u64) -> Option<&[u8]> {
    let alignment = if alignment == 8 { 8 } else { 4 };
    let mut at = 0usize;
    loop {
        let (name_size, size, kind) = (
            u32_at(notes, at)? as usize,
            u32_at(notes, at.checked_add(4)?)? as usize,
            u32_at(notes, at.checked_add(8)?)?,
        );
        let name_at = at.checked_add(12)?;
        let name = notes.get(name_at..name_at.checked_add(name_size)?)?;
        let data_at = name_at.checked_add(name_size)?.checked_next_multiple_of(alignment)?;
        let data_end = data_at.checked_add(size)?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" {
            return notes.get(data_at..data_end);
        }
        at = data_end.checked_next_multiple_of(alignment)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_id_is_found_after_other_notes() {
        let mut notes = [0u8; 52];
        notes[..16].copy_from_slice(&[4, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, b'G', b'N', b'U', 0]);
        notes[20..36].copy_from_slice(&[4, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0, b'G', b'N', b'U', 0]);
        notes[36..39].copy_from_slice(&[0xab, 0xcd, 0xef]);
        assert_eq!(build_id(&notes, 4), Some(&[0xab, 0xcd, 0xef][..]));
        assert_eq!(build_id(&notes[..37], 4), None);
        notes[4] = 0xff;
        notes[5..8].fill(0xff);
        assert_eq!(build_id(&notes, 4), None);
        assert_eq!(build_id(&[], 4), None);
    }
}
