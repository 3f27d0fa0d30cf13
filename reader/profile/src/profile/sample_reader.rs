//! Turns samples, as they are read, into batches to be counted: finds thread and mapping layout, and computes a digest of the
//! stack. Waits for locks are joined here with the stacks that ended them, as samples come in timestamp order.
//!
//! It runs in a separate thread in parallel to the counting, so nothing here may depend on the counts.

use std::collections::HashMap;

use super::batch::{Batch, What};
use super::process::{Process, Thread};
use super::stacks::{Digest, RawStack, RunningDigest, Secret};
use crate::events::{EventCount, Events};
use crate::locks::Joiner;
use crate::mappings::History;
use crate::profile_file::{ProcessInfo, SampleRef};
use crate::tracepoint::Tracepoints;
use crate::word_map::WordMap;

/// The indexes of processes and threads in the profile.
#[derive(Debug, Default)]
pub(super) struct Indexes {
    /// Index of each process by its number in the file.
    processes: HashMap<u32, u32>,
    /// Index of each thread by process index, thread id and thread number.
    threads: WordMap<(u32, u32, u32), u32>,
    /// The threads so far.
    pub(super) all_threads: Vec<Thread>,
}

impl Indexes {
    /// Index of the process with this number in the file. One without a record is added, so that no sample is dropped, and `new` is
    /// called with it.
    pub(super) fn process(&mut self, number: u32, new: impl FnOnce(Process)) -> u32 {
        let next = self.processes.len() as u32;
        *self.processes.entry(number).or_insert_with(|| {
            new(Process { info: ProcessInfo { id: number, ..ProcessInfo::default() } });
            next
        })
    }

    pub(super) fn thread(&mut self, process: u32, tid: u32, seq: u32) -> u32 {
        let next = self.all_threads.len() as u32;
        let index = *self.threads.entry((process, tid, seq)).or_insert(next);
        if index == next {
            self.all_threads.push(Thread { process, tid, seq, name: String::new() });
        }
        index
    }
}

/// Collects samples in batches.
pub(super) struct SampleReader<'a> {
    /// By process index.
    pub(super) histories: &'a [History],
    /// The numbers of their layouts, by epoch.
    pub(super) layouts: &'a [Vec<u32>],
    pub(super) indexes: &'a mut Indexes,
    events: &'a Events,
    tracepoints: &'a mut Tracepoints,
    /// Processes without a record, known only from samples.
    pub(super) unknown: Vec<Process>,
    digest: RunningDigest,
    joiner: Joiner<AtLock>,
    pub(super) batch: Batch,
}

/// Marks a count whose stack is that of the waiting thread: the count before it is the holder's. It has no weight.
pub(super) const PAIR: u8 = u8::MAX;

/// A lock sample, kept until its counterpart arrives.
#[derive(Clone, Debug)]
struct AtLock {
    ns: u64,
    thread: u32,
    process: u32,
    epoch: u32,
    layout: u32,
    end: u8,
    frames: Vec<u64>,
    digest: Digest<3>,
    /// Weight of the wait in nanoseconds, and the event that counts it; `None` for the end of a wait.
    wait: Option<(u64, u8)>,
}

impl AtLock {
    fn raw(&self) -> RawStack<'_> {
        let &AtLock { thread, process, epoch, layout, end, ref frames, .. } = self;
        RawStack { thread, process, epoch, layout, end, kernel: &[], frames }
    }
}

impl<'a> SampleReader<'a> {
    pub(super) fn new(
        histories: &'a [History],
        layouts: &'a [Vec<u32>],
        indexes: &'a mut Indexes,
        events: &'a Events,
        tracepoints: &'a mut Tracepoints,
        secret: Secret,
    ) -> Self {
        Self {
            histories,
            layouts,
            indexes,
            events,
            tracepoints,
            unknown: Vec::new(),
            digest: RunningDigest::new(secret),
            joiner: Joiner::default(),
            batch: Batch::default(),
        }
    }

    /// Adds a sample. True if the batch is full.
    pub(super) fn take(&mut self, sample_ref: SampleRef<'_>) -> bool {
        let SampleRef { sample, frames, shared } = sample_ref;
        let process = self.indexes.process(sample.process, |process| self.unknown.push(process));
        let thread = self.indexes.thread(process, sample.tid, sample.thread_seq);
        let epoch = self.histories.get(process as usize).map_or(0, |history| history.epoch(sample.ns));
        let layouts = self.layouts.get(process as usize);
        let layout = layouts.and_then(|layouts| layouts.get(epoch as usize)).copied().unwrap_or(u32::MAX);
        self.digest.go_on(frames, shared);
        let carried = sample.fields.as_deref();
        let fields = carried.map_or(0, |carried| self.tracepoints.number(sample.process, carried));
        let (events, digest, batch) = (self.events, &self.digest, &mut self.batch);
        events.counts(sample, |EventCount { ns, event, samples, weight, kernel }| {
            let raw = RawStack { thread, process, epoch, layout, end: sample.end, kernel, frames };
            batch.push(What { ns, event, fields, samples, weight }, &raw, digest.of(&raw));
        });
        if events.is_of_locks(sample) {
            let keep = || {
                let raw = RawStack { thread, process, epoch, layout, end: sample.end, kernel: &[], frames };
                AtLock {
                    ns: sample.ns,
                    thread,
                    process,
                    epoch,
                    layout,
                    end: sample.end,
                    frames: frames.to_vec(),
                    digest: digest.of(&raw),
                    wait: events.wait(sample),
                }
            };
            self.joiner.take(sample, keep, |wait, end| {
                if let Some((delay, event)) = wait.wait {
                    let what = What { ns: wait.ns, event, fields: 0, samples: 1, weight: delay };
                    batch.push(what, &end.raw(), end.digest);
                    batch.push(What { event: PAIR, ..what }, &wait.raw(), wait.digest);
                }
            });
        }
        self.batch.is_full()
    }
}
