//! What the walker knows about one loaded object.

use crate::section::Section;
use crate::table::Table;

/// A loaded object (or an anonymous region of code) as the walker sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Module<'a> {
    /// First address of the executable segments.
    pub start: u64,
    /// First address after the executable segments.
    pub end: u64,
    /// Load bias: address minus ELF virtual address.
    pub bias: u64,
    /// Address of the entry point, 0 when there is none (most shared objects).
    pub entry: u64,
    /// `.eh_frame_hdr`, with its sorted search table.
    pub eh_frame_hdr: Option<Section<'a>>,
    /// `.eh_frame`; may run on past its end, entries carry their own lengths.
    pub eh_frame: Option<Section<'a>>,
    /// The rows compiled from `eh_frame`.
    pub table: Option<Table<'a>>,
}

impl Module<'_> {
    /// Bytes after the entry point that still count as the entry stub.
    const ENTRY_STUB: u64 = 64;

    /// Whether `address` lies in the module.
    pub fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// Whether `address` lies in the entry stub, which has no caller. Asked only where there is no CFI (musl's
    /// `_start`, ld.so's).
    pub fn is_entry_stub(&self, address: u64) -> bool {
        self.entry != 0 && address.wrapping_sub(self.entry) < Self::ENTRY_STUB
    }
}
