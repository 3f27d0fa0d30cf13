//! Adds up the allocations of the same thread, stack and size: one sample stands for those of one pass.
//!
//! If all allocations are recorded, nearly all are like earlier ones, and to decode, sort, store and name each would cost
//! more than the program's own share. Their blocks have one id, so the blocks in use are given to one sample. What must
//! never happen here: more blocks in use than allocations.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use shm_format::{AlikeAllocations, AllocationNonce, BlockId, BlocksView};

use crate::drain::merge::Queued;

/// Maximum number of groups: agents give a program some hundred thousand at most. The allocations of further ones are counted,
/// but their blocks are not in use.
const MOST: usize = 1 << 20;

/// The allocations of one process that are not told apart.
#[derive(Default)]
pub(super) struct Alike {
    /// By the word of the allocations.
    groups: HashMap<u64, Group, FixedState>,
    pass: u32,
    /// Allocations of further groups.
    ungrouped: u64,
}

/// Those of one stack and size.
struct Group {
    /// From 1 on; it is part of the samples' nonce.
    number: u32,
    /// The number of their thread.
    thread: u32,
    /// How many were counted since the recording began.
    counted: u64,
    /// The blocks in use have been given to a sample.
    is_owned: bool,
    /// The sample that stands for those of a pass.
    queued: Queued,
    pass: u32,
}

impl Alike {
    /// Begins a pass: samples queued before may have left.
    pub(super) fn begin_pass(&mut self) {
        self.pass = self.pass.wrapping_add(1);
    }

    /// Counts an allocation. Returns the sample that stands for it, if there is one in this pass.
    #[inline]
    pub(super) fn count(&mut self, alike: AlikeAllocations) -> Option<Queued> {
        let group = self.groups.get_mut(&alike.word()).filter(|group| group.pass == self.pass)?;
        // Before the recording begins, no sample owns the blocks.
        group.counted += u64::from(group.is_owned);
        Some(group.queued)
    }

    /// Adds the first sample of a pass, of this thread. `is_early`: the recording has not begun yet. `push` queues the
    /// sample with the nonce that it gets.
    pub(super) fn add(
        &mut self,
        alike: AlikeAllocations,
        thread: u32,
        is_early: bool,
        push: impl FnOnce(u64) -> Queued,
    ) {
        let next = self.groups.len() as u32 + 1;
        let known = self.groups.get(&alike.word());
        let (number, counted) = known.map_or((next, 0), |group| (group.number, group.counted));
        let nonce = AllocationNonce::shared(alike.size(), number);
        if known.is_none() && self.groups.len() >= MOST {
            self.ungrouped += 1;
            let _ = push(nonce.further().0);
            return;
        }
        let is_owned = known.is_some_and(|group| group.is_owned);
        let queued = push(if is_owned || is_early { nonce.further() } else { nonce }.0);
        let counted = counted + u64::from(!is_early);
        let thread = known.map_or(thread, |group| group.thread);
        let is_owned = is_owned || !is_early;
        let group = Group { number, thread, counted, is_owned, queued, pass: self.pass };
        self.groups.insert(alike.word(), group);
    }

    /// How many allocations were in too many groups: their blocks are not in use.
    pub(super) fn ungrouped(&self) -> u64 {
        self.ungrouped
    }

    /// The ids of blocks in use, as the samples have them. Blocks that were allocated before the recording began, or whose
    /// samples were overwritten, are left out.
    pub(super) fn in_use(&self, blocks: BlocksView<'_>) -> Vec<u64> {
        let mut left: HashMap<u64, u64, FixedState> = HashMap::default();
        let id = |block: BlockId| {
            let Some(alike) = AlikeAllocations::from_word(block.0) else { return Some(block.0) };
            let group = self.groups.get(&alike.word()).filter(|group| group.is_owned)?;
            let left = left.entry(block.0).or_insert(group.counted);
            *left = left.checked_sub(1)?;
            Some(AllocationNonce::shared(alike.size(), group.number).id(group.thread).0)
        };
        blocks.ids().filter_map(id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::merge::Merge;
    use selfwind_profile::profile_file::Sample;

    /// A table of live blocks with these ids.
    fn table(ids: &[u64]) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        bytes[..8].copy_from_slice(b"SWBLOCKS");
        bytes[8..16].copy_from_slice(&(ids.len() as u64).to_le_bytes());
        for (number, id) in ids.iter().enumerate() {
            bytes.extend(((number as u64 + 1) << 4).to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    fn in_use(alike: &Alike, ids: &[u64]) -> Vec<u64> {
        alike.in_use(BlocksView::parse(&table(ids)).expect("a table"))
    }

    #[test]
    fn a_program_cannot_make_the_recorder_grow() {
        let (mut alike, mut merge) = (Alike::default(), Merge::default());
        let queued = merge.push(Sample::default(), &[], 0);
        for size in 0..MOST as u32 + 2 {
            let mut nonce = None;
            alike.add(AlikeAllocations::new(0, size, 1), 3, false, |given| {
                nonce = Some(AllocationNonce(given));
                queued
            });
            let nonce = nonce.expect("a sample");
            assert_eq!((nonce.size(), nonce.is_further()), (size.into(), size as usize >= MOST));
        }
        assert_eq!((alike.groups.len(), alike.ungrouped()), (MOST, 2));
    }

    #[test]
    fn blocks_in_use_belong_to_the_first_sample_of_the_recording() {
        let (mut alike, mut merge, mut nonces) = (Alike::default(), Merge::default(), Vec::new());
        let [first, second] = [64, 128].map(|size| AlikeAllocations::new(0, size, 7));
        let mut add = |alike: &mut Alike, which, is_early| {
            alike.add(which, 3, is_early, |nonce| {
                nonces.push(nonce);
                merge.push(Sample { nonce, ..Sample::default() }, &[], 0)
            });
        };
        alike.begin_pass();
        assert!(alike.count(first).is_none());
        add(&mut alike, first, true);
        alike.begin_pass();
        assert!(alike.count(first).is_none(), "the sample of an earlier pass may have left");
        assert_eq!(in_use(&alike, &[first.word()]), [0; 0], "allocated before the recording");
        add(&mut alike, first, false);
        add(&mut alike, second, false);
        assert!(alike.count(first).is_some());
        alike.begin_pass();
        add(&mut alike, first, false);
        let shared = [(64, 1), (128, 2)].map(|(size, number)| AllocationNonce::shared(size, number));
        assert_eq!(
            nonces,
            [shared[0].further(), shared[0], shared[1], shared[0].further()].map(|nonce| nonce.0)
        );
        // Three of the first were counted, and one of the second; a single one is passed on.
        let blocks = [[first.word(); 5].as_slice(), &[second.word(), BlockId::new(3, 9).0]].concat();
        let [one, two] = shared.map(|nonce| nonce.id(3).0);
        assert_eq!(in_use(&alike, &blocks), [one, one, one, two, BlockId::new(3, 9).0]);
        assert_eq!(
            in_use(&alike, &[AlikeAllocations::new(0, 64, 8).word()]),
            [0; 0],
            "no sample has its stack"
        );
    }
}
