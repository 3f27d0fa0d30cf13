//! Which module was mapped where, and when.
//!
//! A process's mappings are a history: `dlclose` frees an address range that the next `dlopen` may
//! give to another library. A sample is therefore resolved against the modules that were mapped at
//! *its* time, never against the last known state.

use std::collections::{BTreeMap, HashMap};

/// One module mapped for a span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address behind the module.
    pub end: u64,
    /// Address minus ELF virtual address, modulo 2^64.
    pub bias: u64,
    /// The file mapped there: an index that means something to the caller.
    pub binary: u32,
}

impl Mapping {
    /// The address as the module's own ELF file numbers it.
    pub fn file_address(&self, address: u64) -> u64 {
        address.wrapping_sub(self.bias)
    }
}

/// What happens to the mappings at an instant. Order matters: at equal times a range is freed before it
/// is taken again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Unmap(usize),
    Map(usize),
}

/// The mapping history of one process image, in nanoseconds of the monotonic clock.
#[derive(Debug, Default)]
pub struct History {
    mappings: Vec<Mapping>,
    /// Place in `mappings` of the module with this recorded number; numbers are unique in an image.
    by_number: HashMap<u32, usize>,
    /// Ends not yet matched with their modules: an end may be told before its module.
    unmaps: Vec<(u64, u32)>,
    changes: Vec<(u64, Change)>,
}

impl History {
    /// Module `number` is mapped from `ns` on. An empty range is ignored.
    pub fn map(&mut self, number: u32, ns: u64, mapping: Mapping) {
        if mapping.start >= mapping.end {
            return;
        }
        self.by_number.insert(number, self.mappings.len());
        self.changes.push((ns, Change::Map(self.mappings.len())));
        self.mappings.push(mapping);
    }

    /// Module `number` is not mapped any more from `ns` on. An unknown number is ignored: its module
    /// record was lost.
    pub fn unmap(&mut self, number: u32, ns: u64) {
        self.unmaps.push((ns, number));
    }

    /// Puts the changes, which may be told in any order, in the order of time. To be called after the
    /// last change and before the first question.
    pub fn seal(&mut self) {
        for (ns, number) in self.unmaps.drain(..) {
            if let Some(&place) = self.by_number.get(&number) {
                self.changes.push((ns, Change::Unmap(place)));
            }
        }
        self.changes.sort_unstable();
    }

    /// Number of the span between two changes in which `ns` lies. Equal addresses in equal epochs mean
    /// the same code, so stacks can be interned by (epoch, addresses).
    pub fn epoch(&self, ns: u64) -> u32 {
        debug_assert!(self.unmaps.is_empty(), "asked before seal()");
        self.changes.partition_point(|&(at, _)| at <= ns) as u32
    }

    /// Starts to replay the history from its first epoch.
    pub fn replay(&self) -> Replay<'_> {
        Replay { history: self, live: BTreeMap::new(), epoch: 0 }
    }
}

/// The mappings of one epoch after the other.
#[derive(Debug)]
pub struct Replay<'a> {
    history: &'a History,
    /// Place of each mapped module by its first address; ranges do not overlap.
    live: BTreeMap<u64, usize>,
    epoch: usize,
}

impl Replay<'_> {
    /// Goes forward to `epoch`; epochs must be visited in ascending order.
    pub fn advance(&mut self, epoch: u32) {
        let target = (epoch as usize).min(self.history.changes.len());
        debug_assert!(target >= self.epoch, "epochs go forward only");
        for &(_, change) in self.history.changes.get(self.epoch..target).unwrap_or(&[]) {
            match change {
                Change::Map(place) => self.take(place),
                Change::Unmap(place) => {
                    let start = self.history.mappings[place].start;
                    if self.live.get(&start) == Some(&place) {
                        self.live.remove(&start);
                    }
                }
            }
        }
        self.epoch = self.epoch.max(target);
    }

    /// Maps a module; what it covers has gone without a record.
    fn take(&mut self, place: usize) {
        let new = self.history.mappings[place];
        let covered: Vec<u64> = self
            .live
            .range(..new.end)
            .rev()
            .take_while(|&(_, &old)| self.history.mappings[old].end > new.start)
            .map(|(&start, _)| start)
            .collect();
        for start in covered {
            self.live.remove(&start);
        }
        self.live.insert(new.start, place);
    }

    /// The module that holds `address` in this epoch.
    pub fn find(&self, address: u64) -> Option<Mapping> {
        let (_, &place) = self.live.range(..=address).next_back()?;
        let mapping = self.history.mappings[place];
        (address < mapping.end).then_some(mapping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64, binary: u32) -> Mapping {
        Mapping { start, end, bias: start.wrapping_sub(0x1000), binary }
    }

    fn binary_at(history: &History, ns: u64, address: u64) -> Option<u32> {
        let mut replay = history.replay();
        replay.advance(history.epoch(ns));
        replay.find(address).map(|m| m.binary)
    }

    #[test]
    fn an_address_belongs_to_the_module_of_its_time() {
        let mut history = History::default();
        // Told out of order.
        history.unmap(1, 20);
        history.map(2, 30, mapping(0x10_000, 0x18_000, 200));
        history.map(1, 10, mapping(0x10_000, 0x20_000, 100));
        history.seal();
        assert_eq!(binary_at(&history, 9, 0x10_000), None);
        assert_eq!(binary_at(&history, 10, 0x10_000), Some(100));
        assert_eq!(binary_at(&history, 19, 0x1f_fff), Some(100));
        assert_eq!(binary_at(&history, 20, 0x10_000), None);
        assert_eq!(binary_at(&history, 30, 0x17_fff), Some(200));
        assert_eq!(binary_at(&history, 30, 0x18_000), None);
        assert_eq!(binary_at(&history, u64::MAX, 0x10_000), Some(200));
    }

    #[test]
    fn a_range_freed_and_taken_at_the_same_instant_is_taken() {
        let mut history = History::default();
        history.map(1, 0, mapping(0x1000, 0x2000, 1));
        history.map(2, 5, mapping(0x1000, 0x2000, 2));
        history.unmap(1, 5);
        history.seal();
        assert_eq!(binary_at(&history, 4, 0x1800), Some(1));
        assert_eq!(binary_at(&history, 5, 0x1800), Some(2));
    }

    #[test]
    fn a_lost_unmap_does_not_shadow_the_newer_module() {
        let mut history = History::default();
        history.map(1, 0, mapping(0x1000, 0x3000, 1));
        history.map(2, 0, mapping(0x3000, 0x5000, 2));
        history.map(3, 7, mapping(0x2000, 0x4000, 3));
        // The late end of an evicted module must not take the newer one away.
        history.unmap(1, 9);
        history.seal();
        assert_eq!(binary_at(&history, 6, 0x2000), Some(1));
        assert_eq!(binary_at(&history, 7, 0x2000), Some(3));
        assert_eq!(binary_at(&history, 9, 0x3fff), Some(3));
        assert_eq!(binary_at(&history, 9, 0x1000), None);
        assert_eq!(binary_at(&history, 9, 0x4800), None);
    }

    #[test]
    fn file_addresses_undo_the_bias_even_when_it_is_negative() {
        let prelinked = Mapping { start: 0x1000, end: 0x2000, bias: 0u64.wrapping_sub(0x40_0000), binary: 0 };
        assert_eq!(prelinked.file_address(0x1234), 0x40_1234);
    }

    #[test]
    fn empty_ranges_and_unknown_modules_are_ignored() {
        let mut history = History::default();
        history.map(1, 0, mapping(0x1000, 0x1000, 1));
        history.unmap(77, 3);
        history.seal();
        assert_eq!(binary_at(&history, 1, 0x1000), None);
        assert_eq!(history.epoch(100), 0);
    }
}
