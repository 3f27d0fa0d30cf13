//! The mappings of a process at one point in time.

use crate::binaries::Binaries;
use crate::binary::Binary;

/// A mapped address range: part of a file, or code generated at run time.
#[derive(Clone, Copy, Debug)]
pub struct Mapping<'a> {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// File offset of the byte at `start`.
    pub offset: u64,
    /// The file; `None` for mappings that no file backs (generated code).
    pub binary: Option<&'a Binary>,
    /// Time of the mapping. Inherited across fork.
    pub since_ns: u64,
    /// Unique per call of [`crate::Processes::map`]. The pieces of a mapping that was split keep its id.
    pub id: u64,
}

impl Mapping<'_> {
    /// Load bias. If the file cannot be read, virtual addresses are assumed to equal file offsets, which holds for most
    /// shared libraries.
    pub fn bias(&self) -> u64 {
        let contents = self.binary.and_then(Binary::contents);
        let bias = contents.and_then(|contents| contents.bias(self.start, self.offset));
        bias.unwrap_or_else(|| self.start.wrapping_sub(self.offset))
    }

    /// The eight code bytes at `address`, which must lie in the mapping.
    pub(crate) fn word(&self, address: u64, binaries: &Binaries) -> Option<u64> {
        let offset = self.offset.checked_add(address.checked_sub(self.start)?)?;
        binaries.read(self.binary?)?.word(offset)
    }
}

/// Mappings sorted by address, without overlaps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout<'a> {
    mappings: Vec<Mapping<'a>>,
}

impl<'a> Layout<'a> {
    pub(crate) fn mappings(&self) -> &[Mapping<'a>] {
        &self.mappings
    }

    /// Adds a mapping, replacing whatever it overlaps.
    pub(crate) fn map(&mut self, new: Mapping<'a>) {
        self.unmap(new.start, new.end);
        let at = self.mappings.partition_point(|mapping| mapping.start < new.start);
        self.mappings.insert(at, new);
    }

    /// Removes an address range, splitting mappings that extend beyond it.
    pub(crate) fn unmap(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.mappings.partition_point(|mapping| mapping.end <= start);
        let last = self.mappings.partition_point(|mapping| mapping.start < end);
        let Some(touched) = self.mappings.get(first..last) else { return };
        let before = touched.first().filter(|mapping| mapping.start < start);
        let before = before.map(|mapping| Mapping { end: start, ..*mapping });
        let after = touched.last().filter(|mapping| mapping.end > end);
        let after = after.map(|mapping| Mapping {
            start: end,
            offset: mapping.offset.wrapping_add(end - mapping.start),
            ..*mapping
        });
        self.mappings.splice(first..last, before.into_iter().chain(after));
    }

    pub(crate) fn clear(&mut self) {
        self.mappings.clear();
    }

    /// The mapping that contains an address.
    pub(crate) fn find(&self, address: u64) -> Option<&Mapping<'a>> {
        let after = self.mappings.partition_point(|mapping| mapping.start <= address);
        self.mappings.get(after.checked_sub(1)?).filter(|mapping| address < mapping.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64, id: u64) -> Mapping<'static> {
        Mapping { start, end, offset: start, binary: None, since_ns: 0, id }
    }

    fn shown(layout: &Layout<'_>) -> Vec<(u64, u64, u64, u64)> {
        layout.mappings().iter().map(|it| (it.start, it.end, it.offset, it.id)).collect()
    }

    #[test]
    fn a_new_mapping_replaces_what_it_overlaps() {
        let mut layout = Layout::default();
        layout.map(mapping(0x1000, 0x9000, 1));
        layout.map(mapping(0x3000, 0x5000, 2));
        assert_eq!(
            shown(&layout),
            [(0x1000, 0x3000, 0x1000, 1), (0x3000, 0x5000, 0x3000, 2), (0x5000, 0x9000, 0x5000, 1)]
        );
        layout.unmap(0x4000, 0x6000);
        assert_eq!(
            shown(&layout),
            [(0x1000, 0x3000, 0x1000, 1), (0x3000, 0x4000, 0x3000, 2), (0x6000, 0x9000, 0x6000, 1)]
        );
        assert_eq!(layout.find(0x6000).map(|it| it.id), Some(1));
        assert!(layout.find(0x5fff).is_none() && layout.find(0x9000).is_none());
        layout.map(mapping(0, u64::MAX, 3));
        assert_eq!(shown(&layout), [(0, u64::MAX, 0, 3)]);
        layout.unmap(5, 5);
        layout.unmap(6, 5);
        assert_eq!(shown(&layout).len(), 1);
    }

    /// Compared with an array that has one entry per page.
    #[test]
    fn it_agrees_with_an_array_of_pages() {
        let mut layout = Layout::default();
        let mut pages = [0u64; 64];
        let mut random = 1u64;
        for id in 1..2000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (start, len) = (random >> 58, (random >> 40) % 9);
            let end = (start + len).min(64);
            let is_map = random >> 30 & 1 == 0;
            if start < end {
                if is_map {
                    layout.map(mapping(start << 12, end << 12, id));
                } else {
                    layout.unmap(start << 12, end << 12);
                }
                pages[start as usize..end as usize].fill(if is_map { id } else { 0 });
            }
            for (page, &id) in pages.iter().enumerate() {
                let found = layout.find((page as u64) << 12);
                assert_eq!(found.map_or(0, |it| it.id), id);
                assert!(found.is_none_or(|it| it.offset == it.start));
            }
        }
    }
}
