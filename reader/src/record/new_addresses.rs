//! Finds the blocks of a growing profile that contain no new address. They need not be read again to name all addresses. If
//! every allocation of a program is recorded, that is nearly all of the profile.
//!
//! The meaning of an address depends on what was mapped at its time. So the known addresses of a process are forgotten whenever
//! its mappings change, and only later samples count again. What must never happen here: skipping the only block with an
//! address. Reading a block too many costs only time.

use std::collections::HashMap;

use selfwind_profile::profile_file::{Event, SampleRef};

/// Size of the direct-mapped table of known frames: as many as large programs have.
const ENTRIES: usize = 1 << 15;

/// A frame that a previous block has.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Known {
    word: u64,
    /// 0 for none.
    era: u64,
}

/// The time between two changes of a process's mappings.
#[derive(Clone, Copy)]
struct Era {
    number: u64,
    /// Samples after this (CLOCK_MONOTONIC) belong to it.
    since: u64,
}

/// The blocks so far, and the addresses in them.
pub(super) struct NewAddresses {
    frames: Vec<Known>,
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
            frames: vec![Known::default(); ENTRIES],
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
            let known = Known { word, era: era.number };
            let mixed = (word ^ era.number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let entry = &mut self.frames[(mixed >> 32) as usize % ENTRIES];
            self.is_new |= *entry != known;
            *entry = known;
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
    fn a_block_without_news_is_skipped_blocks() {
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
