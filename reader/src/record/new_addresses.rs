//! Collects the addresses of a growing profile, so that its names can be found without reading its samples again.
//!
//! The meaning of an address depends on what was mapped at its time. So the known addresses of a process are forgotten whenever
//! its mappings change, and only later samples count again. A change may be learned after samples that follow it; the blocks that
//! hold these have to be read. What must never happen here: missing an address. One too many costs only time.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;
use selfwind_profile::profile::Addresses;
use selfwind_profile::profile_file::{Event, SampleRef};

/// Maximum number of known frames. The largest programs have a tenth of that; at the maximum all are forgotten.
const MOST_KNOWN: usize = 1 << 18;
/// Maximum number of addresses to collect. If there are more, mostly the same ones in mappings that keep changing, the samples
/// are read again.
const MOST: usize = 1 << 19;

/// The time between two changes of a process's mappings.
#[derive(Clone, Copy)]
struct Era {
    number: u64,
    /// Samples after this (CLOCK_MONOTONIC) belong to it.
    since: u64,
}

/// The addresses so far, and the blocks that need not be read for anything else.
pub(super) struct NewAddresses {
    /// Frames that a previous sample has, each with the era's number.
    known: HashSet<(u64, u64), FixedState>,
    /// By process number.
    eras: HashMap<u32, Era>,
    last_era: u64,
    /// Process and era of the previous sample of this block.
    before: Option<(u32, Era)>,
    /// `None` if there are too many.
    addresses: Option<Addresses>,
    block: Block,
    /// Blocks that hold only samples and no late one.
    sample_blocks: Vec<Block>,
}

/// A block of the profile.
#[derive(Clone, Copy, Default)]
struct Block {
    /// Where it begins.
    offset: u64,
    is_of_samples: bool,
    /// Time of its newest sample.
    newest_ns: u64,
}

impl Default for NewAddresses {
    fn default() -> Self {
        Self {
            known: HashSet::default(),
            eras: HashMap::new(),
            last_era: 0,
            before: None,
            addresses: Some(Addresses::default()),
            block: Block::default(),
            sample_blocks: Vec::new(),
        }
    }
}

impl NewAddresses {
    /// Notes that an event other than a sample goes into the block that begins at byte `block`.
    pub(super) fn event(&mut self, event: &Event, block: u64) {
        self.enter(block);
        self.block.is_of_samples = false;
        self.before = None;
        let (process, since) = match event {
            Event::Module(module) => (module.process, module.loaded_ns),
            Event::ModuleGone(gone) => (gone.process, gone.ns),
            Event::ProcessEnd(end) => {
                self.eras.remove(&end.process);
                return;
            }
            _ => return,
        };
        while self.sample_blocks.pop_if(|block| block.newest_ns > since).is_some() {}
        self.last_era += 1;
        let before = self.eras.get(&process).map_or(0, |era| era.since);
        self.eras.insert(process, Era { number: self.last_era, since: since.max(before) });
    }

    /// Notes that a sample has gone into the block that begins at byte `block`.
    pub(super) fn sample(&mut self, sample_ref: SampleRef<'_>, block: u64) {
        if self.block.offset != block {
            self.before = None;
        }
        self.enter(block);
        self.block.newest_ns = self.block.newest_ns.max(sample_ref.sample.ns);
        let Some(addresses) = &mut self.addresses else { return };
        let (process, ns) = (sample_ref.sample.process, sample_ref.sample.ns);
        let (era, shared) = match self.before {
            Some((before, era)) if before == process => (Some(era), sample_ref.shared),
            _ => (self.eras.get(&process).copied(), 0),
        };
        // A sample from before the change has older mappings.
        let era = era.filter(|era| ns > era.since);
        self.before = era.map(|era| (process, era));
        let shared = if era.is_some() { shared } else { 0 };
        for &word in sample_ref.frames.get(shared..).unwrap_or(&[]) {
            if era.is_none_or(|era| self.known.insert((era.number, word))) {
                addresses.add(process, ns, word);
            }
        }
        if self.known.len() > MOST_KNOWN {
            self.known.clear();
        }
        if addresses.len() > MOST {
            self.addresses = None;
        }
    }

    fn enter(&mut self, offset: u64) {
        if self.block.offset != offset {
            if self.block.is_of_samples {
                self.sample_blocks.push(self.block);
            }
            self.block = Block { offset, is_of_samples: true, newest_ns: 0 };
        }
    }

    /// The addresses, unless there are too many, and the ascending offsets of blocks with nothing but samples of which these are
    /// the addresses; never the last block.
    pub(super) fn take(&mut self) -> Option<(Addresses, Vec<u64>)> {
        let skipped = self.sample_blocks.iter().map(|block| block.offset).collect();
        Some((self.addresses.take()?, skipped))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use selfwind_profile::profile_file::{ModuleGone, ModuleInfo, Sample};

    use super::*;

    fn module(process: u32, loaded_ns: u64) -> Event {
        Event::Module(ModuleInfo { process, loaded_ns, path: PathBuf::from("/a"), ..ModuleInfo::default() })
    }

    fn sample(found: &mut NewAddresses, process: u32, ns: u64, frames: &[u64], block: u64) {
        let sample = Sample { process, ns, ..Sample::default() };
        found.sample(SampleRef { sample: &sample, frames, shared: 0 }, block);
    }

    /// All that was collected: process, time and frames.
    fn collected(mut found: NewAddresses) -> Vec<(u32, u64, Vec<u64>)> {
        let (addresses, _) = found.take().expect("not too many");
        addresses.groups().map(|(process, ns, frames)| (process, ns, frames.to_vec())).collect()
    }

    #[test]
    fn each_address_of_a_process_is_collected_once() {
        let mut found = NewAddresses::default();
        found.event(&module(1, 100), 10);
        sample(&mut found, 1, 101, &[7, 8], 10);
        sample(&mut found, 1, 102, &[7, 8], 20);
        sample(&mut found, 1, 103, &[7, 9], 30);
        // Another process, whose mappings are unknown.
        sample(&mut found, 2, 104, &[7], 30);
        sample(&mut found, 2, 105, &[7], 40);
        assert_eq!(
            collected(found),
            [(1, 101, vec![7, 8]), (1, 103, vec![9]), (2, 104, vec![7]), (2, 105, vec![7])]
        );
    }

    #[test]
    fn blocks_with_other_events_are_read() {
        let mut found = NewAddresses::default();
        found.event(&module(1, 100), 10);
        for block in [10, 20, 30, 30, 40, 50] {
            sample(&mut found, 1, 101, &[7], block);
        }
        found.event(&module(2, 200), 50);
        found.event(&module(3, 200), 60);
        sample(&mut found, 1, 101, &[8], 60);
        sample(&mut found, 1, 101, &[8], 70);
        // The last block may be continued.
        sample(&mut found, 1, 101, &[8], 80);
        assert_eq!(found.take().expect("not too many").1, [20, 30, 40, 70]);
    }

    #[test]
    fn a_large_programs_addresses_are_all_remembered() {
        let mut found = NewAddresses::default();
        found.event(&module(1, 100), 10);
        let frames: Vec<u64> = (0..30_000).map(|number| 0x55d0_0000_1234 + 97 * number).collect();
        for ns in [101, 102, 103] {
            for stack in frames.chunks(50) {
                sample(&mut found, 1, ns, stack, 20);
            }
        }
        assert_eq!(found.take().expect("not too many").0.len(), frames.len());
    }

    #[test]
    fn changed_mappings_make_addresses_new() {
        let mut found = NewAddresses::default();
        found.event(&module(1, 100), 10);
        sample(&mut found, 1, 101, &[7], 10);
        found.event(&Event::ModuleGone(ModuleGone { process: 1, module: 0, ns: 200 }), 20);
        // The second is late: from before the change.
        for ns in [201, 199, 202] {
            sample(&mut found, 1, ns, &[7], 20);
        }
        let [first, late, new] = [101, 199, 201].map(|ns| (1, ns, vec![7]));
        assert_eq!(collected(found), [first, new, late]);
    }

    #[test]
    fn blocks_with_samples_after_a_change_that_was_learned_later_are_read() {
        let mut found = NewAddresses::default();
        found.event(&module(1, 100), 10);
        for (ns, block) in [(130, 20), (139, 30), (141, 40), (150, 50)] {
            sample(&mut found, 1, ns, &[7], block);
        }
        found.event(&module(1, 140), 60);
        assert_eq!(found.take().expect("not too many").1, [20, 30]);
    }

    #[test]
    fn too_many_addresses_are_given_up() {
        let mut found = NewAddresses::default();
        for word in 0..=MOST as u64 {
            sample(&mut found, 1, word, &[word], 10);
        }
        assert!(found.take().is_none());
    }
}
