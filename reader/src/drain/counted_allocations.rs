//! Makes samples of the allocations that are not told apart, and gives the blocks in use to them.
//!
//! One sample stands for all allocations of a thread, stack and size since the last pass. They come from the process's table
//! of allocation counts, or from a flight recorder's records. Their blocks have one id, so
//! the blocks in use are given to the first of these samples. What must never happen here: more blocks in use than
//! allocations.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use foldhash::fast::FixedState;
use shm_format::{AlikeAllocations, AllocationCounts, AllocationNonce, BlockId, BlocksView, CountsView};

use crate::drain::merge::Queued;

/// The counted allocations of one process.
#[derive(Default)]
pub(super) struct CountedAllocations {
    /// What each entry of the table was when it was last read.
    seen: Vec<Option<Seen>>,
    /// By the word of the allocations.
    groups: HashMap<u64, Group, FixedState>,
    /// The samples of this pass that stand for records.
    queued: HashMap<u64, Queued, FixedState>,
}

#[derive(Clone, Copy)]
struct Seen {
    alike: AlikeAllocations,
    count: u64,
}

/// Those of one stack and size.
#[derive(Clone, Copy)]
struct Group {
    /// From 1 on; it is part of the samples' nonce.
    number: u32,
    /// The number of their thread.
    thread: u32,
    /// How many have become samples.
    sampled: u64,
}

/// Allocations of one stack and size since the table was last read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct More {
    pub(super) alike: AlikeAllocations,
    pub(super) count: u32,
}

impl CountedAllocations {
    /// The allocations since the last call.
    pub(super) fn read(&mut self, counts: CountsView<'_>) -> Vec<More> {
        let mut more = Vec::new();
        for (index, alike, count) in counts.counts() {
            if self.seen.len() <= index {
                self.seen.resize(index + 1, None);
            }
            let Some(entry) = self.seen.get_mut(index) else { continue };
            let seen = entry.filter(|seen| seen.alike == alike).map_or(0, |seen| seen.count);
            let new = u32::try_from(count.saturating_sub(seen)).unwrap_or(u32::MAX);
            if new > 0 {
                *entry = Some(Seen { alike, count: seen + u64::from(new) });
                more.push(More { alike, count: new });
            }
        }
        more
    }

    /// Begins a pass: samples queued before may have left.
    pub(super) fn begin_pass(&mut self) {
        self.queued.clear();
    }

    /// Notes the sample that stands for the records of a pass.
    pub(super) fn queue(&mut self, alike: AlikeAllocations, queued: Queued) {
        self.queued.insert(alike.word(), queued);
    }

    /// Counts another record. Returns the sample that stands for it, if there is one in this pass.
    #[inline]
    pub(super) fn count(&mut self, alike: AlikeAllocations) -> Option<Queued> {
        let queued = *self.queued.get(&alike.word())?;
        // Before the recording begins, no sample owns the blocks.
        let group = self.groups.get_mut(&alike.word()).filter(|group| group.sampled > 0);
        if let Some(group) = group {
            group.sampled += 1;
        }
        Some(queued)
    }

    /// The nonce for the sample of further allocations, of this thread. `None` if there are more groups than a table has.
    pub(super) fn nonce(&mut self, more: More, thread: u32) -> Option<u64> {
        let group = self.group(more.alike, thread)?;
        let nonce = AllocationNonce::shared(more.alike.size(), group.number);
        let is_first = group.sampled == 0;
        group.sampled += u64::from(more.count);
        Some(if is_first { nonce } else { nonce.further() }.0)
    }

    /// The nonce for a sample from before the recording began.
    pub(super) fn earlier_nonce(&mut self, alike: AlikeAllocations, thread: u32) -> Option<u64> {
        let group = self.group(alike, thread)?;
        Some(AllocationNonce::shared(alike.size(), group.number).further().0)
    }

    fn group(&mut self, alike: AlikeAllocations, thread: u32) -> Option<&mut Group> {
        let next = self.groups.len() + 1;
        match self.groups.entry(alike.word()) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(_) if next > AllocationCounts::CAPACITY_MOST => None,
            Entry::Vacant(free) => Some(free.insert(Group { number: next as u32, thread, sampled: 0 })),
        }
    }

    /// The ids of blocks in use, as the samples have them. Blocks of earlier recordings are left out.
    pub(super) fn in_use(&self, blocks: BlocksView<'_>) -> Vec<u64> {
        let mut groups = self.groups.clone();
        let id = |block: BlockId| {
            let Some(alike) = AlikeAllocations::from_word(block.0) else { return Some(block.0) };
            let group = groups.get_mut(&alike.word())?;
            group.sampled = group.sampled.checked_sub(1)?;
            Some(AllocationNonce::shared(alike.size(), group.number).id(group.thread).0)
        };
        blocks.ids().filter_map(id).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use selfwind_profile::profile_file::Sample;

    use super::*;
    use crate::drain::merge::Merge;

    const PAGE_WORDS: usize = 512;

    /// A table with this magic and these entries.
    fn table(magic: &[u8; 8], entries: &[[u64; 2]]) -> Vec<AtomicU64> {
        let mut words = vec![0; PAGE_WORDS];
        (words[0], words[1], words[3]) =
            (u64::from_le_bytes(*magic), entries.len() as u64, entries.len() as u64);
        words.extend(entries.as_flattened());
        words.into_iter().map(AtomicU64::new).collect()
    }

    fn read(counted: &mut CountedAllocations, table: &[AtomicU64]) -> Vec<(AlikeAllocations, u32)> {
        let more = counted.read(CountsView::find(table).expect("a table"));
        more.into_iter().map(|more| (more.alike, more.count)).collect()
    }

    fn in_use(counted: &CountedAllocations, ids: &[u64]) -> Vec<u64> {
        let entries: Vec<_> = ids.iter().zip(1..).map(|(id, at)| [at << 4, *id]).collect();
        counted.in_use(BlocksView::find(&table(b"SWBLOCKS", &entries)).expect("a table"))
    }

    #[test]
    fn allocations_become_samples_once() {
        let mut counted = CountedAllocations::default();
        let [first, second] = [64, 128].map(|size| AlikeAllocations::new(0, size, 7));
        let table = table(b"SWCOUNTS", &[[first.word(), 3], [first.word(), 5], [second.word(), 0]]);
        assert_eq!(read(&mut counted, &table), [(first, 3), (first, 5)]);
        assert_eq!(read(&mut counted, &table), []);
        for (at, count) in [(0, 4), (2, u64::from(u32::MAX) + 7)] {
            table[PAGE_WORDS + 2 * at + 1].store(count, Ordering::Relaxed);
        }
        assert_eq!(read(&mut counted, &table), [(first, 1), (second, u32::MAX)]);
        assert_eq!(read(&mut counted, &table), [(second, 7)]);
        // A process that lies: a count that falls, an entry that becomes another.
        table[PAGE_WORDS + 1].store(1, Ordering::Relaxed);
        table[PAGE_WORDS + 4].store(first.word(), Ordering::Relaxed);
        assert_eq!(read(&mut counted, &table), [(first, u32::MAX)]);
    }

    #[test]
    fn blocks_in_use_belong_to_the_first_sample_of_the_recording() {
        let mut counted = CountedAllocations::default();
        let [first, second] = [64, 128].map(|size| AlikeAllocations::new(0, size, 7));
        assert_eq!(in_use(&counted, &[first.word()]), [0; 0], "allocated before the recording");
        let nonces = [(first, 2), (second, 1), (first, 1)]
            .map(|(alike, count)| counted.nonce(More { alike, count }, 3).expect("a group"));
        let shared = [(64, 1), (128, 2)].map(|(size, number)| AllocationNonce::shared(size, number));
        assert_eq!(nonces, [shared[0], shared[1], shared[0].further()].map(|nonce| nonce.0));
        // Three of the first were counted, and one of the second; a single one is passed on.
        let blocks = [[first.word(); 5].as_slice(), &[second.word(), BlockId::new(3, 9).0]].concat();
        let [one, two] = shared.map(|nonce| nonce.id(3).0);
        assert_eq!(in_use(&counted, &blocks), [one, one, one, two, BlockId::new(3, 9).0]);
        assert_eq!(
            in_use(&counted, &[AlikeAllocations::new(0, 64, 8).word()]),
            [0; 0],
            "no sample has its stack"
        );
    }

    #[test]
    fn records_of_a_pass_are_one_sample() {
        let (mut counted, mut merge) = (CountedAllocations::default(), Merge::default());
        let alike = AlikeAllocations::new(0, 64, 7);
        let nonce = AllocationNonce::shared(64, 1);
        let mut queue = |counted: &mut CountedAllocations| {
            counted.queue(alike, merge.push(Sample::default(), &[], 0));
        };
        assert_eq!(counted.earlier_nonce(alike, 3), Some(nonce.further().0));
        queue(&mut counted);
        assert!(counted.count(alike).is_some());
        assert_eq!(in_use(&counted, &[alike.word()]), [0; 0], "allocated before the recording");
        counted.begin_pass();
        assert!(counted.count(alike).is_none(), "the sample of an earlier pass may have left");
        assert_eq!(counted.nonce(More { alike, count: 1 }, 3), Some(nonce.0));
        queue(&mut counted);
        assert!(counted.count(alike).is_some());
        assert_eq!(in_use(&counted, &[alike.word(); 3]), [nonce.id(3).0; 2]);
    }

    #[test]
    fn a_program_cannot_make_the_recorder_grow() {
        let mut counted = CountedAllocations::default();
        let mut nonce = |size| counted.nonce(More { alike: AlikeAllocations::new(0, size, 1), count: 1 }, 3);
        for size in 0..AllocationCounts::CAPACITY_MOST as u32 {
            assert_eq!(nonce(size).map(|nonce| AllocationNonce(nonce).size()), Some(size.into()));
        }
        assert_eq!(nonce(AllocationCounts::CAPACITY_MOST as u32), None);
        assert!(nonce(0).is_some_and(|nonce| AllocationNonce(nonce).is_further()));
    }
}
