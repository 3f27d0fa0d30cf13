//! Copies the metadata of a loaded object out of memory that another thread may unmap meanwhile.
//!
//! In an attached process nobody holds the loader's lock while its objects are examined, so nothing of theirs may be
//! read in place: the kernel copies the bytes and returns an error for unmapped addresses. The copies lie in one
//! mapping at the same distances as in the object; its other pages are never touched.

use alloc::vec;
use alloc::vec::Vec;
use core::ptr::NonNull;

use platform::sys::PAGE;
use unwind::Section;
use unwind::elf_image::{ElfImage, ProgramHeader};

use crate::kernel;

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PF_R: u32 = 4;
const MAGIC: [u8; 4] = *b"\x7fELF";
/// Size of `Elf64_Ehdr`, which linkers let the program headers follow directly.
const EHDR_SIZE: usize = 64;

/// Copies the program headers of the object whose file header is mapped at `start`.
pub(crate) fn headers_at(start: u64) -> Option<Vec<ProgramHeader>> {
    let mut ehdr = [0u8; EHDR_SIZE];
    // An object linked at an address other than 0 does not begin at its bias, where nothing may be mapped.
    if start == 0 || !kernel::copy_own(start, &mut ehdr) || ehdr[..4] != MAGIC {
        return None;
    }
    let offset = u64::from_le_bytes(ehdr.get(32..40)?.try_into().ok()?);
    let count = u16::from_le_bytes(ehdr.get(56..58)?.try_into().ok()?);
    headers(start.checked_add(offset)?, count)
}

/// Copies `count` program headers from `address`.
pub(crate) fn headers(address: u64, count: u16) -> Option<Vec<ProgramHeader>> {
    let mut headers = vec![ProgramHeader::default(); count.into()];
    let bytes = headers.len() * size_of::<ProgramHeader>();
    // SAFETY: the vector's own memory; every bit pattern is a valid header.
    let raw = unsafe { core::slice::from_raw_parts_mut(headers.as_mut_ptr().cast::<u8>(), bytes) };
    kernel::copy_own(address, raw).then_some(headers)
}

/// Copies the string at `address`, without its NUL. `None` if it is unreadable or longer than a path.
pub(crate) fn string(address: u64) -> Option<Vec<u8>> {
    const LONGEST: usize = 4096;
    let mut text = Vec::new();
    while text.len() < LONGEST {
        let at = address + text.len() as u64;
        let mut part = [0u8; 128];
        // Up to the end of the page, since the next one may be unmapped.
        let part = part.get_mut(..((PAGE - at % PAGE) as usize).min(128))?;
        if !kernel::copy_own(at, part) {
            return None;
        }
        let end = part.iter().position(|byte| *byte == 0);
        text.extend_from_slice(part.get(..end.unwrap_or(part.len()))?);
        if end.is_some() {
            return Some(text);
        }
    }
    None
}

/// Copies of parts of an object.
pub(crate) struct CopiedImage<'a> {
    bias: u64,
    headers: &'a [ProgramHeader],
    /// First page of the object.
    start: u64,
    base: NonNull<u8>,
    bytes: usize,
}

impl Drop for CopiedImage<'_> {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned by this value.
        unsafe { kernel::unmap(self.base.as_ptr(), self.bytes) };
    }
}

impl<'a> CopiedImage<'a> {
    /// Copies what identifies the object at `bias`. `None` if there is no such object (any more).
    pub(crate) fn new(bias: u64, headers: &'a [ProgramHeader]) -> Option<Self> {
        let loads = || headers.iter().filter(|header| header.kind == PT_LOAD);
        let start = loads().map(|header| bias.wrapping_add(header.address)).min()? & !(PAGE - 1);
        let end = loads()
            .filter_map(|header| bias.wrapping_add(header.address).checked_add(header.memory_size))
            .max()?;
        let bytes = end.checked_sub(start).filter(|bytes| (1..1 << 40).contains(bytes))? as usize;
        let base = kernel::map_sparse(bytes)?;
        let copied = CopiedImage { bias, headers, start, base, bytes };
        let notes = headers.iter().filter(|header| header.kind == PT_NOTE);
        notes.for_each(|header| {
            copied.copy(bias.wrapping_add(header.address), header.memory_size);
        });
        if let Some(first) = loads().find(|header| header.offset == 0) {
            copied.copy(bias.wrapping_add(first.address), EHDR_SIZE as u64);
        }
        Some(copied)
    }

    /// Also copies the unwind sections.
    pub(crate) fn with_sections(self) -> Self {
        let header = self.headers.iter().find(|header| header.kind == PT_GNU_EH_FRAME);
        if let Some(header) = header
            && self.copy(self.bias.wrapping_add(header.address), header.memory_size)
            && let Some(eh_frame) = self.image().and_then(|image| image.eh_frame)
        {
            self.copy(eh_frame.address, eh_frame.bytes.len() as u64);
        }
        self
    }

    /// Copies `bytes` bytes from `address`, which must lie in a readable segment.
    fn copy(&self, address: u64, bytes: u64) -> bool {
        let is_inside = |header: &&ProgramHeader| {
            let offset = address.wrapping_sub(self.bias.wrapping_add(header.address));
            let readable = header.kind == PT_LOAD && header.flags & PF_R != 0;
            readable && offset.checked_add(bytes).is_some_and(|end| end <= header.file_size)
        };
        if !self.headers.iter().any(|header| is_inside(&header)) {
            return false;
        }
        let offset = address.wrapping_sub(self.start) as usize;
        // SAFETY: inside a segment, and the mapping is as long as all segments; nobody else has it, and references into
        // it are made after this by `image` alone.
        let to = unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr().add(offset), bytes as usize) };
        kernel::copy_own(address, to)
    }

    /// The object as seen through the copies, at its own addresses. The contents of sections not copied are meaningless.
    pub(crate) fn image(&self) -> Option<ElfImage<'_>> {
        let shift = (self.base.as_ptr() as u64).wrapping_sub(self.start);
        // SAFETY: a readable mapping as long as all segments, which lives as long as `self`.
        let mut image = unsafe { ElfImage::from_headers(self.bias.wrapping_add(shift), self.headers) }?;
        let back = |address: &mut u64| *address = address.wrapping_sub(shift);
        let section =
            |section: Section<'a>| Section { address: section.address.wrapping_sub(shift), ..section };
        back(&mut image.start);
        back(&mut image.end);
        back(&mut image.text_start);
        back(&mut image.text_end);
        back(&mut image.data_start);
        back(&mut image.data_end);
        back(&mut image.bias);
        if image.entry != 0 {
            back(&mut image.entry);
        }
        image.eh_frame_hdr = image.eh_frame_hdr.map(section);
        image.eh_frame = image.eh_frame.map(section);
        Some(image)
    }
}
