//! The history of mapped modules: which one was mapped where, and when.
//!
//! `dlclose` frees an address range that the next `dlopen` may give to another library. So a sample is resolved against the
//! modules that were mapped at *its* time, never against the last known state.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};

/// A mapped module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Mapping {
    /// First address.
    pub start: u64,
    /// End address, exclusive.
    pub end: u64,
    /// Address minus ELF virtual address, modulo 2^64.
    pub bias: u64,
    /// The file mapped there: an index defined by the caller.
    pub binary: u32,
}

impl Mapping {
    /// The address in the module's ELF file.
    pub(crate) fn file_address(&self, address: u64) -> u64 {
        address.wrapping_sub(self.bias)
    }
}

/// A change of the mappings. The order of variants matters: at equal times, a range is freed before it is reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Unmap(usize),
    Map(usize),
}

/// The mapping history of one process image, in nanoseconds of the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct History {
    mappings: Vec<Mapping>,
    /// Index in `mappings` of the module with this recorded number; numbers are unique in an image.
    by_number: HashMap<u32, usize>,
    /// Ends not yet matched with their modules: an end may be reported before its module.
    unmaps: Vec<(u64, u32)>,
    changes: Vec<(u64, Change)>,
    /// Index by address and epoch; computed by `seal`.
    spans: Spans,
    /// The layout of each epoch: a digest of everything mapped in it.
    layouts: Vec<u128>,
}

impl History {
    /// Adds a module mapped from `ns` on. An empty range is ignored.
    pub(crate) fn map(&mut self, number: u32, ns: u64, mapping: Mapping) {
        if mapping.start >= mapping.end {
            return;
        }
        self.by_number.insert(number, self.mappings.len());
        self.changes.push((ns, Change::Map(self.mappings.len())));
        self.mappings.push(mapping);
    }

    /// Ends a module at `ns`. An unknown number is ignored: its module record was lost.
    pub(crate) fn unmap(&mut self, number: u32, ns: u64) {
        self.unmaps.push((ns, number));
    }

    /// Sorts the changes, which may be added in any order, by time. Call it after the last change and before the first query, with the
    /// same secret for all processes.
    pub(crate) fn seal(&mut self, secret: &RandomState) {
        for (ns, number) in self.unmaps.drain(..) {
            if let Some(&index) = self.by_number.get(&number) {
                self.changes.push((ns, Change::Unmap(index)));
            }
        }
        self.changes.sort_unstable();
        let spans = Replay::of(self);
        self.layouts = layouts(&self.mappings, &spans, self.changes.len(), secret);
        self.spans = Spans::new(&self.mappings, spans);
    }

    /// The digest of everything mapped in an epoch: equal for equal mappings, also across processes.
    pub(crate) fn layout(&self, epoch: u32) -> u128 {
        self.layouts.get(epoch as usize).copied().unwrap_or(0)
    }

    /// The epoch of `ns`: the number of the span between two changes. Equal addresses in the same epoch are the same code, so stacks can
    /// be interned by (epoch, addresses).
    pub(crate) fn epoch(&self, ns: u64) -> u32 {
        debug_assert!(self.unmaps.is_empty(), "asked before seal()");
        self.changes.partition_point(|&(at, _)| at <= ns) as u32
    }

    /// How many epochs there are.
    pub(crate) fn epochs(&self) -> u32 {
        self.changes.len() as u32 + 1
    }

    /// The module that contains `address` in an epoch. Queries may come in any order.
    pub(crate) fn find(&self, epoch: u32, address: u64) -> Option<Mapping> {
        self.spans.find(epoch, address).map(|index| self.mappings[index as usize])
    }
}

/// A mapping that existed from one epoch until another, exclusive.
#[derive(Debug, Clone, Copy)]
struct Span {
    from: u32,
    until: u32,
    /// Index of the mapping.
    index: u32,
}

/// A keyed 128-bit digest of the mappings of each epoch, independent of their order.
fn layouts(mappings: &[Mapping], spans: &[Span], changes: usize, secret: &RandomState) -> Vec<u128> {
    let mut layouts = vec![0; changes + 1];
    for &Span { from, until, index } in spans {
        let half = |number: u8| u128::from(secret.hash_one((number, mappings[index as usize])));
        let summand = half(0) << 64 | half(1);
        layouts[from as usize] ^= summand;
        if let Some(end) = layouts.get_mut(until as usize) {
            *end ^= summand;
        }
    }
    let mut sum = 0;
    for layout in &mut layouts {
        sum ^= *layout;
        *layout = sum;
    }
    layouts
}

/// Applies the changes in order.
#[derive(Debug)]
struct Replay<'a> {
    mappings: &'a [Mapping],
    /// Index and first epoch of each mapped module, by its first address; ranges do not overlap.
    live: BTreeMap<u64, (usize, u32)>,
    spans: Vec<Span>,
}

impl Replay<'_> {
    /// The epochs of each mapping.
    fn of(history: &History) -> Vec<Span> {
        let mut replay = Replay { mappings: &history.mappings, live: BTreeMap::new(), spans: Vec::new() };
        for (number, &(_, change)) in history.changes.iter().enumerate() {
            let epoch = number as u32 + 1;
            match change {
                Change::Map(index) => replay.take(index, epoch),
                Change::Unmap(index) => {
                    let start = history.mappings[index].start;
                    if replay.live.get(&start).is_some_and(|&(live, _)| live == index) {
                        replay.end(start, epoch);
                    }
                }
            }
        }
        let live: Vec<u64> = replay.live.keys().copied().collect();
        live.into_iter().for_each(|start| replay.end(start, u32::MAX));
        replay.spans
    }

    fn end(&mut self, start: u64, until: u32) {
        if let Some((index, from)) = self.live.remove(&start)
            && from < until
        {
            self.spans.push(Span { from, until, index: index as u32 });
        }
    }

    /// Maps a module. Modules that it covers have been unmapped without a record.
    fn take(&mut self, index: usize, epoch: u32) {
        let new = self.mappings[index];
        let covered: Vec<u64> = self
            .live
            .range(..new.end)
            .rev()
            .take_while(|&(_, &(old, _))| self.mappings[old].end > new.start)
            .map(|(&start, _)| start)
            .collect();
        covered.into_iter().for_each(|start| self.end(start, epoch));
        self.live.insert(new.start, (index, epoch));
    }
}

/// The spans, by address: a segment tree over the bounds of all mappings. Each of its nodes holds the spans that
/// cover it and not the node above. Two of them never hold the same epoch, as mappings do not overlap.
#[derive(Debug, Default)]
struct Spans {
    /// Where mappings begin and end, ascending.
    bounds: Vec<u64>,
    /// Nodes 2n and 2n + 1 are below node n; the last half are the ranges between bounds.
    nodes: Vec<Vec<Span>>,
}

impl Spans {
    fn new(mappings: &[Mapping], mut spans: Vec<Span>) -> Self {
        let mut bounds: Vec<u64> = mappings.iter().flat_map(|mapping| [mapping.start, mapping.end]).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let ranges = bounds.len();
        let mut nodes = vec![Vec::new(); 2 * ranges];
        spans.sort_unstable_by_key(|span| span.from);
        for span in spans {
            let Mapping { start, end, .. } = mappings[span.index as usize];
            let at = |bound| ranges + bounds.partition_point(|&other| other < bound);
            let (mut left, mut right) = (at(start), at(end));
            while left < right {
                if left % 2 == 1 {
                    nodes[left].push(span);
                    left += 1;
                }
                if right % 2 == 1 {
                    right -= 1;
                    nodes[right].push(span);
                }
                (left, right) = (left / 2, right / 2);
            }
        }
        Self { bounds, nodes }
    }

    fn find(&self, epoch: u32, address: u64) -> Option<u32> {
        let range = self.bounds.partition_point(|&bound| bound <= address).checked_sub(1)?;
        let mut node = self.bounds.len() + range;
        while node > 0 {
            let spans = &self.nodes[node];
            let last = spans.partition_point(|span| span.from <= epoch).checked_sub(1);
            if let Some(span) = last.map(|last| spans[last])
                && epoch < span.until
            {
                return Some(span.index);
            }
            node /= 2;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64, binary: u32) -> Mapping {
        Mapping { start, end, bias: start.wrapping_sub(0x1000), binary }
    }

    fn binary_at(history: &History, ns: u64, address: u64) -> Option<u32> {
        history.find(history.epoch(ns), address).map(|m| m.binary)
    }

    #[test]
    fn an_address_belongs_to_the_module_of_its_time() {
        let mut history = History::default();
        // Reported out of order.
        history.unmap(1, 20);
        history.map(2, 30, mapping(0x10_000, 0x18_000, 200));
        history.map(1, 10, mapping(0x10_000, 0x20_000, 100));
        history.seal(&RandomState::new());
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
        history.seal(&RandomState::new());
        assert_eq!(binary_at(&history, 4, 0x1800), Some(1));
        assert_eq!(binary_at(&history, 5, 0x1800), Some(2));
    }

    #[test]
    fn a_lost_unmap_does_not_shadow_the_newer_module() {
        let mut history = History::default();
        history.map(1, 0, mapping(0x1000, 0x3000, 1));
        history.map(2, 0, mapping(0x3000, 0x5000, 2));
        history.map(3, 7, mapping(0x2000, 0x4000, 3));
        // The late end of an evicted module must not unmap the newer one.
        history.unmap(1, 9);
        history.seal(&RandomState::new());
        assert_eq!(binary_at(&history, 6, 0x2000), Some(1));
        assert_eq!(binary_at(&history, 7, 0x2000), Some(3));
        assert_eq!(binary_at(&history, 9, 0x3fff), Some(3));
        assert_eq!(binary_at(&history, 9, 0x1000), None);
        assert_eq!(binary_at(&history, 9, 0x4800), None);
    }

    #[test]
    fn equal_layouts_are_told_across_processes_and_times() {
        let secret = RandomState::new();
        let (a, b) = (mapping(0x1000, 0x2000, 1), mapping(0x2000, 0x3000, 2));
        let sealed = |tell: &dyn Fn(&mut History)| {
            let mut history = History::default();
            tell(&mut history);
            history.seal(&secret);
            history
        };
        let one = sealed(&|history| {
            history.map(1, 10, a);
            history.map(2, 20, b);
            history.unmap(2, 30);
        });
        let other = sealed(&|history| {
            history.map(7, 5, b);
            history.map(8, 50, a);
            history.map(9, 60, mapping(0x1000, 0x2000, 3));
        });
        let at = |history: &History, ns| history.layout(history.epoch(ns));
        assert_eq!(at(&one, 25), at(&other, 55));
        assert_eq!(at(&one, 15), at(&one, 35));
        assert_eq!(at(&one, 0), at(&other, 0));
        let different = [at(&one, 0), at(&one, 15), at(&one, 25), at(&other, 5), at(&other, 65)];
        let set: std::collections::HashSet<u128> = different.into_iter().collect();
        assert_eq!(set.len(), different.len());
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
        history.seal(&RandomState::new());
        assert_eq!(binary_at(&history, 1, 0x1000), None);
        assert_eq!(history.epoch(100), 0);
    }
}
