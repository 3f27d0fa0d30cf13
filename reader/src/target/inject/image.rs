//! The agent's memory image: its segments in one block, relocated for an address, without a loader.
//!
//! The library is built for this: it needs no other library, its imports are optional, and it works without its one thread-local
//! variable. Imports stay 0, and so does the variable's offset.

use object::elf::{self, FileHeader64, Rela64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, Rela, Sym};
use object::{Endianness, pod};

use crate::proc::PAGE;
use crate::target::inject::error::InjectError;

/// The agent, ready to be written.
#[derive(Debug)]
pub(super) struct Image {
    /// Its memory from the load bias on.
    pub(crate) bytes: Vec<u8>,
    /// Offset of the entry point.
    pub(crate) entry: u64,
    /// Offset from which on it must be writable: a multiple of the page size.
    pub(crate) writable: u64,
}

/// Size of the image of `file` in bytes, in whole pages.
pub(super) fn size(file: &[u8]) -> Result<u64, InjectError> {
    Layout::of(file).map(|layout| layout.end)
}

struct Layout<'a> {
    header: &'a FileHeader64<Endianness>,
    endian: Endianness,
    end: u64,
}

impl<'a> Layout<'a> {
    fn of(file: &'a [u8]) -> Result<Self, InjectError> {
        let wrong = |_| InjectError::Image("it is not an ELF file");
        let header = FileHeader64::<Endianness>::parse(file).map_err(wrong)?;
        let endian = header.endian().map_err(wrong)?;
        let end = header
            .program_headers(endian, file)
            .map_err(wrong)?
            .iter()
            .filter(|segment| segment.p_type(endian) == elf::PT_LOAD)
            .map(|segment| segment.p_vaddr(endian) + segment.p_memsz(endian))
            .max()
            .ok_or(InjectError::Image("it has no segments"))?;
        Ok(Self { header, endian, end: end.next_multiple_of(PAGE) })
    }
}

impl Image {
    /// The library in `file`, for the address `bias`.
    pub(super) fn relocated(file: &[u8], bias: u64) -> Result<Self, InjectError> {
        let Layout { header, endian, end } = Layout::of(file)?;
        let mut image = Self { bytes: vec![0; end as usize], entry: header.e_entry(endian), writable: end };
        let mut dynamic = None;
        for segment in header.program_headers(endian, file).map_err(|_| InjectError::Image("no segments"))? {
            let address = segment.p_vaddr(endian);
            match segment.p_type(endian) {
                elf::PT_LOAD => {
                    let data = segment.data(endian, file).map_err(|()| InjectError::Image("cut short"))?;
                    image.slice(address, data.len())?.copy_from_slice(data);
                    if segment.p_flags(endian) & elf::PF_W != 0 {
                        image.writable = image.writable.min(address & !(PAGE - 1));
                    }
                }
                elf::PT_DYNAMIC => dynamic = segment.dynamic(endian, file).ok().flatten(),
                _ => {}
            }
        }
        if image.entry == 0 {
            return Err(InjectError::Image("it has no entry point"));
        }
        let mut values = [0u64; 4];
        for entry in dynamic.unwrap_or_default() {
            let value = entry.d_val(endian);
            match entry.d_tag(endian) {
                elf::DT_RELA => values[0] = value,
                elf::DT_RELASZ => values[1] = value,
                elf::DT_SYMTAB => values[2] = value,
                elf::DT_JMPREL | elf::DT_RELR | elf::DT_NEEDED => {
                    return Err(InjectError::Image("it needs features of a loader that are missing here"));
                }
                _ => {}
            }
        }
        image.relocate(file, endian, bias, values)?;
        Ok(image)
    }

    fn slice(&mut self, address: u64, len: usize) -> Result<&mut [u8], InjectError> {
        let start = address as usize;
        self.bytes
            .get_mut(start..start.saturating_add(len))
            .ok_or(InjectError::Image("it reaches beyond its end"))
    }

    /// Applies `DT_RELA`. `values` are those of `DT_RELA`, `DT_RELASZ` and `DT_SYMTAB`: the offset of the table, its size, and the
    /// offset of the symbols. All are in the first segment, which begins at the start of the file.
    fn relocate(
        &mut self,
        file: &[u8],
        endian: Endianness,
        bias: u64,
        values: [u64; 4],
    ) -> Result<(), InjectError> {
        let wrong = |()| InjectError::Image("its relocations are damaged");
        let [table, bytes, symbols, _] = values;
        let count = bytes as usize / size_of::<Rela64<Endianness>>();
        let table = file.get(table as usize..).ok_or(()).map_err(wrong)?;
        let (table, _) = pod::slice_from_bytes::<Rela64<Endianness>>(table, count).map_err(wrong)?;
        for relocation in table {
            let addend = relocation.r_addend(endian) as u64;
            let symbol = || -> Result<u64, InjectError> {
                let index = relocation.r_sym(endian, false) as usize;
                let offset = symbols as usize + index * size_of::<elf::Sym64<Endianness>>();
                let symbol = file.get(offset..).ok_or(()).map_err(wrong)?;
                let (symbol, _) = pod::from_bytes::<elf::Sym64<Endianness>>(symbol).map_err(wrong)?;
                // Undefined symbols are weak, and absent.
                let defined = symbol.st_shndx(endian) != elf::SHN_UNDEF;
                Ok(if defined { bias.wrapping_add(symbol.st_value(endian)) } else { 0 })
            };
            let value = match relocation.r_type(endian, false) {
                elf::R_X86_64_RELATIVE => bias.wrapping_add(addend),
                elf::R_X86_64_GLOB_DAT | elf::R_X86_64_JUMP_SLOT => symbol()?,
                elf::R_X86_64_64 => symbol()?.wrapping_add(addend),
                elf::R_X86_64_TPOFF64 => 0,
                _ => return Err(InjectError::Image("it has relocations of an unknown kind")),
            };
            self.slice(relocation.r_offset(endian), 8)?.copy_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::agent_file;

    #[test]
    fn the_embedded_agent_can_be_laid_out() {
        let Some(file) = agent_file::content() else { return };
        let (low, high) =
            (Image::relocated(file, 0x10000).unwrap(), Image::relocated(file, 0x7000_0000_0000).unwrap());
        assert_eq!(low.bytes.len() as u64, size(file).unwrap());
        assert!(low.entry > 0 && low.entry < low.writable && low.writable.is_multiple_of(PAGE));
        // Only words that hold addresses differ, by the distance.
        let words = |image: &Image| {
            image.bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect::<Vec<_>>()
        };
        let moved = words(&low).into_iter().zip(words(&high)).filter(|(l, h)| l != h).collect::<Vec<_>>();
        assert!(moved.len() > 50 && moved.iter().all(|(l, h)| h - l == 0x7000_0000_0000 - 0x10000));
    }

    #[test]
    fn what_is_no_library_is_refused() {
        assert!(Image::relocated(b"", 0).is_err() && Image::relocated(&[0; 4096], 0).is_err());
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert!(Image::relocated(&own, 0).is_err(), "it needs libraries");
    }
}
