//! Function boundaries of a file without names.
//!
//! Call frame information remains in stripped files. With its function boundaries, all addresses of an unnamed function are shown as
//! one function, `module+0xSTART`, instead of hundreds of addresses.

use gimli::{BaseAddresses, CieOrFde, EhFrame, EndianSlice, RunTimeEndian, UnwindSection as _};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection};

/// The first addresses of all functions that `.eh_frame` describes, sorted.
#[derive(Debug, Default)]
pub(super) struct FrameEntries {
    /// (first address, end address)
    ranges: Vec<(u64, u64)>,
}

impl FrameEntries {
    /// Reads `.eh_frame`; malformed entries are ignored.
    pub(super) fn read(file: &ElfFile64<'_, Endianness>) -> Self {
        let mut ranges = Vec::new();
        let Some(section) = file.section_by_name(".eh_frame") else { return FrameEntries::default() };
        let Ok(bytes) = section.data() else { return FrameEntries::default() };
        let mut bases = BaseAddresses::default().set_eh_frame(section.address());
        if let Some(text) = file.section_by_name(".text") {
            bases = bases.set_text(text.address());
        }
        let frames = EhFrame::from(EndianSlice::new(bytes, RunTimeEndian::Little));
        let mut entries = frames.entries(&bases);
        while let Ok(Some(entry)) = entries.next() {
            if let CieOrFde::Fde(partial) = entry
                && let Ok(fde) = partial.parse(EhFrame::cie_from_offset)
                && fde.len() > 0
            {
                ranges.push((fde.initial_address(), fde.end_address()));
            }
        }
        ranges.sort_unstable();
        FrameEntries { ranges }
    }

    /// The first address of the function that contains `address`.
    pub(super) fn start(&self, address: u64) -> Option<u64> {
        let behind = self.ranges.partition_point(|&(start, _)| start <= address);
        let &(start, end) = self.ranges.get(behind.checked_sub(1)?)?;
        (address < end).then_some(start)
    }
}
