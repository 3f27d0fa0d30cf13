//! The code to examine, as its file holds it.

use std::ops::Range;

/// Code to examine. All addresses are virtual addresses of the file.
#[derive(Debug, Default)]
pub struct Code {
    /// Ranges without call frame information: address and contents, by address, without overlaps.
    pub ranges: Vec<(u64, Vec<u8>)>,
    /// Where functions are known to begin: from symbols, and the initialisers.
    pub starts: Vec<u64>,
    /// Where the program begins, which has no caller.
    pub entry: u64,
}

impl Code {
    /// The part of the range that contains `address`, from there on.
    pub(crate) fn at(&self, address: u64) -> Option<&[u8]> {
        let after = self.ranges.partition_point(|(start, _)| *start <= address);
        let (start, bytes) = self.ranges.get(after.checked_sub(1)?)?;
        bytes.get(usize::try_from(address - start).ok()?..).filter(|bytes| !bytes.is_empty())
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(start, bytes)| *start..start + bytes.len() as u64)
    }
}
