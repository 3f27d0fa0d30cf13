//! What is mapped in a process at one time.

use crate::binaries::Binaries;
use crate::binary::Binary;

/// A stretch of memory that a file, or code made at run time, is mapped to.
#[derive(Clone, Copy, Debug)]
pub struct Mapping<'a> {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Place in the file of the byte at `start`.
    pub offset: u64,
    /// The file; none if it has no name that could be one (code made at run time).
    pub binary: Option<&'a Binary>,
    /// It was mapped at this time. A forked process inherits it.
    pub since_ns: u64,
    /// A number that each call of [`crate::Processes::map`] has of its own. What is left of a mapping that was cut keeps it.
    pub id: u64,
}

impl Mapping<'_> {
    /// Runtime address minus virtual address of the file. Where the file cannot be read it is taken for one whose
    /// addresses are its offsets, as those of most libraries are.
    pub fn bias(&self) -> u64 {
        let contents = self.binary.and_then(Binary::contents);
        let bias = contents.and_then(|contents| contents.bias(self.start, self.offset));
        bias.unwrap_or_else(|| self.start.wrapping_sub(self.offset))
    }

    /// The eight bytes of code at `address`, which lie in the mapping.
    pub(crate) fn word(&self, address: u64, binaries: &Binaries) -> Option<u64> {
        let offset = self.offset.checked_add(address.checked_sub(self.start)?)?;
        binaries.read(self.binary?)?.word(offset)
    }
}

/// The mappings of a process by address; none overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout<'a> {
    mappings: Vec<Mapping<'a>>,
}

impl<'a> Layout<'a> {
    pub(crate) fn mappings(&self) -> &[Mapping<'a>] {
        &self.mappings
    }

    /// Puts a mapping in the place of what was there.
    pub(crate) fn map(&mut self, new: Mapping<'a>) {
        self.unmap(new.start, new.end);
        let at = self.mappings.partition_point(|mapping| mapping.start < new.start);
        self.mappings.insert(at, new);
    }

    /// Removes what lies between two addresses, also parts of mappings.
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

    /// What is mapped at an address.
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
    fn a_new_mapping_cuts_what_was_there() {
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

    /// A plain map of every page says the same.
    #[test]
    fn it_is_what_an_array_of_pages_would_be() {
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
