//! Everything a reader delivered, by thread and sequence, with the checks that hold in every mode.

use std::collections::{BTreeMap, HashMap};

use shm_format::{DrainStats, Pass, RegionReader};

/// One delivered record.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub ticks: u64,
    pub writer: u64,
    pub number: u64,
}

#[derive(Default)]
pub struct Ledger {
    /// By (tid, thread sequence), then by record sequence.
    pub threads: HashMap<(u32, u32), BTreeMap<u64, Entry>>,
    pub lost: HashMap<(u32, u32), u64>,
    pub stats: DrainStats,
    scratch: Vec<u8>,
}

impl Ledger {
    /// Drains once. No record may come twice, and each must be whole.
    pub fn drain(&mut self, reader: &mut RegionReader, pass: Pass) -> DrainStats {
        self.scratch.resize(32 * 1024, 0);
        let (threads, lost) = (&mut self.threads, &mut self.lost);
        let stats = reader.drain(pass, &mut self.scratch, &mut |chunk, record| {
            if record.again {
                return;
            }
            let (writer, number) = super::check(record.payload);
            let thread = (chunk.tid, chunk.thread_seq);
            let entry = Entry { ticks: record.ticks, writer, number };
            let before = threads.entry(thread).or_default().insert(record.sequence, entry);
            assert!(before.is_none(), "{thread:?} record {} came twice: {before:?}", record.sequence);
            let seen = lost.entry(thread).or_default();
            *seen = chunk.lost.max(*seen);
        });
        assert_eq!(stats.violations, 0, "{stats:?}");
        assert_eq!(stats.unknown, 0, "{stats:?}");
        self.stats.records += stats.records;
        self.stats.torn += stats.torn;
        self.stats.void += stats.void;
        self.stats.chunks += stats.chunks;
        self.stats.overtaken += stats.overtaken;
        stats
    }

    pub fn thread(&self, tid: u32) -> &BTreeMap<u64, Entry> {
        static NONE: BTreeMap<u64, Entry> = BTreeMap::new();
        self.threads.iter().find(|(thread, _)| thread.0 == tid).map_or(&NONE, |(_, records)| records)
    }

    pub fn len(&self) -> usize {
        self.threads.values().map(BTreeMap::len).sum()
    }

    /// Times rise with the sequence in every thread.
    pub fn assert_ordered(&self) {
        for (thread, records) in &self.threads {
            let mut last = None;
            for (sequence, entry) in records {
                assert!(
                    last < Some(entry.ticks),
                    "{thread:?} record {sequence} is not later than the one before"
                );
                last = Some(entry.ticks);
            }
        }
    }

    /// Runs of missing sequences below `end`, in one thread.
    pub fn holes(&self, tid: u32, end: u64) -> Vec<(u64, u64)> {
        let mut holes = Vec::new();
        let mut next = 0;
        for sequence in self.thread(tid).keys().copied().chain([end]) {
            if sequence > next {
                holes.push((next, sequence));
            }
            next = sequence + 1;
        }
        holes
    }
}
