//! Finds the blocks of a growing profile that contain no new address. They need not be read again to name all addresses. If
//! every allocation of a program is recorded, that is nearly all of the profile.
//!
//! The meaning of an address depends on what was mapped at its time. So the known addresses of a process are forgotten whenever
//! its mappings change, and only later samples count again. What must never happen here: skipping the only block with an
//! address. Reading a block too many costs only time.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;
use selfwind_profile::profile_file::{Event, SampleRef};

/// Maximum number of known frames. The largest programs have a tenth of that; at the maximum all are forgotten.
const MOST_KNOWN: usize = 1 << 18;

/// The time between two changes of a process's mappings.
#[derive(Clone, Copy)]
struct Era {
    number: u64,
    /// Samples after this (CLOCK_MONOTONIC) belong to it.
    since: u64,
}

/// The blocks so far, and the addresses in them.
pub(super) struct NewAddresses {
    /// Frames that a previous block has, each with the era's number.
    known: HashSet<(u64, u64), FixedState>,
    /// By process number.
    eras: HashMap<u32, Era>,
    last_era: u64,
    /// Process and era of the previous sample of this block.
    before: Option<(u32, Era)>,
    /// Where the current block begins, and whether it must be read.
    block: u64,
    is_new: bool,
    skipped: Vec<u64>,
}

impl Default for NewAddresses {
    fn default() -> Self {
        Self {
            known: HashSet::default(),
            eras: HashMap::new(),
            last_era: 0,
            before: None,
            block: 0,
            is_new: true,
            skipped: Vec::new(),
        }
    }
}

impl NewAddresses {
    /// Notes that an event other than a sample goes into the block that begins at byte `block`.
    pub(super) fn event(&mut self, event: &Event, block: u64) {
        self.enter(block);
        self.is_new = true;
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
        self.last_era += 1;
        let before = self.eras.get(&process).map_or(0, |era| era.since);
        self.eras.insert(process, Era { number: self.last_era, since: since.max(before) });
    }

    /// Notes that a sample has gone into the block that begins at byte `block`.
    pub(super) fn sample(&mut self, sample_ref: SampleRef<'_>, block: u64) {
        if self.block != block {
            self.before = None;
        }
        self.enter(block);
        let process = sample_ref.sample.process;
        let (era, shared) = match self.before {
            Some((before, era)) if before == process => (era, sample_ref.shared),
            _ => match self.eras.get(&process) {
                Some(&era) => (era, 0),
                None => return self.is_new = true,
            },
        };
        if sample_ref.sample.ns <= era.since {
            (self.is_new, self.before) = (true, None);
            return;
        }
        self.before = Some((process, era));
        for &word in sample_ref.frames.get(shared..).unwrap_or(&[]) {
            if self.known.insert((era.number, word)) {
                self.is_new = true;
            }
        }
        if self.known.len() > MOST_KNOWN {
            self.known.clear();
        }
    }

    fn enter(&mut self, block: u64) {
        if self.block != block {
            if !self.is_new {
                self.skipped.push(self.block);
            }
            (self.block, self.is_new) = (block, false);
        }
    }

    /// Offsets of the blocks without new addresses, ascending; never the last block.
    pub(super) fn skipped_blocks(&self) -> &[u64] {
        &self.skipped
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

    #[test]
    fn blocks_without_news_are_skipped() {
        let mut found = NewAddresses::default();
        found.event(&module(1, 100), 10);
        sample(&mut found, 1, 101, &[7, 8], 10);
        sample(&mut found, 1, 102, &[7, 8], 20);
        sample(&mut found, 1, 103, &[7, 9], 30);
        sample(&mut found, 1, 104, &[7, 9], 40);
        // Another process, whose mappings are unknown.
        sample(&mut found, 2, 104, &[7, 9], 50);
        sample(&mut found, 1, 105, &[9], 60);
        sample(&mut found, 1, 105, &[9], 70);
        assert_eq!(found.skipped_blocks(), [20, 40, 60]);
    }

    #[test]
    fn a_large_programs_addresses_are_all_remembered() {
        let mut found = NewAddresses::default();
        found.event(&module(1, 100), 10);
        let frames: Vec<u64> = (0..30_000).map(|number| 0x55d0_0000_1234 + 97 * number).collect();
        for block in [20, 30, 40] {
            for stack in frames.chunks(50) {
                sample(&mut found, 1, 101, stack, block);
            }
        }
        sample(&mut found, 1, 102, &frames[..1], 50);
        assert_eq!(found.skipped_blocks(), [30, 40]);
    }

    #[test]
    fn changed_mappings_make_addresses_new() {
        let mut found = NewAddresses::default();
        found.event(&module(1, 100), 10);
        sample(&mut found, 1, 101, &[7], 10);
        found.event(&Event::ModuleGone(ModuleGone { process: 1, module: 0, ns: 200 }), 20);
        // Late: from before the change.
        sample(&mut found, 1, 199, &[7], 30);
        sample(&mut found, 1, 201, &[7], 40);
        sample(&mut found, 1, 202, &[7], 50);
        // Late again.
        sample(&mut found, 1, 200, &[7], 60);
        sample(&mut found, 1, 203, &[7], 70);
        sample(&mut found, 1, 203, &[7], 80);
        assert_eq!(found.skipped_blocks(), [50, 70]);
    }
}
