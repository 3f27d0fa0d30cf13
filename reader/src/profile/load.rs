//! From the events of a profile file to a [`Profile`].
//!
//! The file is read twice: first for processes, modules and threads, whose records may come after the
//! samples that need them, then for the samples. No sample is kept.

use std::collections::HashMap;
use std::path::Path;

use unwind::{End, FoundBy};

use super::batch::{Batch, Waiting};
use super::generated::Generated;
use super::kernel::KernelNames;
use super::naming;
use super::resolve::{Resolved, Resolver};
use super::stacks::{Counts, Key, Lately, RawStack};
use super::timeline::{LossFinder, Moment};
use super::{Binary, Process, Profile, Stack, Thread};
use crate::mappings::{History, Mapping};
use crate::measure::Measure;
use crate::profile_file::{
    Event, ModuleInfo, ProcessInfo, ProfileError, ProfileReader, Sample, Tail, ThreadInfo,
};
use crate::stats::Tally;
use crate::symbolize::SymbolSources;
use crate::word_map::WordMap;

/// Reads and names a profile file.
///
/// # Errors
/// When the file cannot be read or is damaged; a file that ends early is read as far as it goes, with a note.
pub fn load(path: &Path, sources: &SymbolSources) -> Result<Profile, ProfileError> {
    Loader::default().load(path, sources)
}

/// The same, with every sample at its time: [`Profile::timeline`].
///
/// # Errors
/// As [`load`].
pub fn load_timed(path: &Path, sources: &SymbolSources) -> Result<Profile, ProfileError> {
    Loader { moments: Some(Vec::new()), ..Loader::default() }.load(path, sources)
}

/// Names what `events` tell, in whatever order.
pub fn of_events(events: Vec<Event>, sources: &SymbolSources) -> Profile {
    let mut loader = Loader::default();
    let (samples, others): (Vec<_>, Vec<_>) =
        events.into_iter().partition(|event| matches!(event, Event::Sample(_)));
    others.into_iter().for_each(|event| loader.learn(event));
    loader.seal();
    for event in samples {
        if let Event::Sample(sample) = event {
            loader.count(&sample);
        }
    }
    loader.finish(sources)
}

/// What to tell of a file that does not end in order.
fn tail_note(tail: Tail) -> Option<String> {
    match tail {
        Tail::Complete => None,
        Tail::Truncated { .. } => Some("the file ends early; this is all up to its last whole block".into()),
    }
}

/// Identity of a binary: its build-id, else its path.
type BinaryKey = (Vec<u8>, Option<std::path::PathBuf>);

/// A profile while it is read.
#[derive(Default)]
pub(super) struct Loader {
    pub(super) profile: Profile,
    /// Place of each process by its number in the file.
    processes: HashMap<u32, u32>,
    /// Mapping history by place of the process.
    histories: Vec<History>,
    binaries: HashMap<BinaryKey, u32>,
    generated: Generated,
    /// Place of each thread by process place, thread id and sequence number.
    threads: WordMap<(u32, u32, u32), u32>,
    batch: Batch,
    lately: Lately,
    resolved: Resolved,
    counts: Counts,
    /// Samples at their times.
    moments: Option<Vec<Moment>>,
    kernel: KernelNames,
}

impl Loader {
    fn load(mut self, path: &Path, sources: &SymbolSources) -> Result<Profile, ProfileError> {
        let mut tally = Tally::default();
        let mut losses = LossFinder::default();
        let mut events = ProfileReader::open(path)?.without_samples();
        for event in &mut events {
            let event = event?;
            tally.add(&event);
            losses.learn(&event, &mut self.profile.losses);
            self.learn(event);
        }
        self.profile.notes.extend(events.tail().and_then(tail_note));
        self.seal();
        for event in ProfileReader::open(path)? {
            let event = event?;
            if let Event::Sample(sample) = &event {
                tally.add(&event);
                self.count(sample);
            }
        }
        self.profile.stats = tally.finish(events.bytes());
        Ok(self.finish(sources))
    }

    /// First reading: everything but samples.
    pub(super) fn learn(&mut self, event: Event) {
        match event {
            Event::Session(session) => self.profile.session = session,
            Event::Process(info) => self.process_record(info),
            Event::Module(module) => self.module(module),
            Event::ModuleGone(gone) => {
                let process = self.process(gone.process);
                self.histories[process as usize].unmap(gone.module, gone.ns);
            }
            Event::Thread(ThreadInfo { process, tid, seq, name, .. }) => {
                self.thread_name(process, tid, seq, name)
            }
            Event::ThreadName(named) => self.thread_name(named.process, named.tid, named.seq, named.name),
            Event::Generated(code) => {
                let process = self.process(code.process);
                let history = &mut self.histories[process as usize];
                self.generated.learn(&mut self.profile, process, history, code);
            }
            Event::KernelSymbol(symbol) => self.kernel.add(symbol),
            Event::Sample(_) | Event::ThreadEnd(_) | Event::Setting(_) => {}
            Event::Counters(_) | Event::ProcessEnd(_) | Event::End(_) => {}
        }
    }

    /// Place of the process with this number in the file. One without a record gets an empty one, so that
    /// no sample is dropped.
    fn process(&mut self, number: u32) -> u32 {
        if let Some(&place) = self.processes.get(&number) {
            return place;
        }
        let place = self.profile.processes.len() as u32;
        let info = ProcessInfo { id: number, ..ProcessInfo::default() };
        self.profile.processes.push(Process { info });
        self.histories.push(History::default());
        self.processes.insert(number, place);
        place
    }

    fn process_record(&mut self, info: ProcessInfo) {
        let place = self.process(info.id) as usize;
        self.profile.processes[place].info = info;
    }

    fn module(&mut self, module: ModuleInfo) {
        let process = self.process(module.process);
        // Files without a build-id are told apart by their path.
        let path = module.build_id.is_empty().then(|| module.path.clone());
        let next = self.profile.binaries.len() as u32;
        let binary = *self.binaries.entry((module.build_id.clone(), path)).or_insert(next);
        if binary == next {
            let ModuleInfo { path, build_id, .. } = module;
            self.profile.binaries.push(Binary { path, build_id, origin: None, read: false });
        }
        let mapping = Mapping { start: module.start, end: module.end, bias: module.bias, binary };
        self.histories[process as usize].map(module.module, module.loaded_ns, mapping);
    }

    fn thread(&mut self, process: u32, tid: u32, seq: u32) -> u32 {
        let process = self.process(process);
        let next = self.profile.threads.len() as u32;
        let place = *self.threads.entry((process, tid, seq)).or_insert(next);
        if place == next {
            self.profile.threads.push(Thread { process, tid, seq, name: String::new() });
        }
        place
    }

    fn thread_name(&mut self, process: u32, tid: u32, seq: u32, name: String) {
        let thread = self.thread(process, tid, seq);
        if !name.is_empty() {
            self.profile.threads[thread as usize].name = name;
        }
    }

    /// Ends the first reading.
    pub(super) fn seal(&mut self) {
        self.histories.iter_mut().for_each(History::seal);
        let Profile { session, processes, measures, .. } = &mut self.profile;
        let known = processes.iter().map(|process| (&process.info.source, process.info.period_ns));
        *measures = Measure::all(session, known);
    }

    /// Second reading: one sample.
    pub(super) fn count(&mut self, sample: &Sample) {
        let thread = self.thread(sample.process, sample.tid, sample.thread_seq);
        let process = self.profile.threads[thread as usize].process;
        let epoch = self.histories[process as usize].epoch(sample.ns);
        for part in sample.parts() {
            let raw = RawStack {
                thread,
                process,
                epoch,
                end: sample.end,
                kernel: part.kernel,
                frames: &sample.frames,
            };
            self.batch.push(&part, &raw, self.lately.digest(&raw));
        }
        if self.batch.is_full() {
            self.count_batch();
        }
    }

    /// Counts the samples that wait.
    fn count_batch(&mut self) {
        let Loader { profile, histories, generated, kernel, lately, resolved, .. } = self;
        let mut batch = std::mem::take(&mut self.batch);
        batch.stacks.extend(batch.parts.iter().map(|part| lately.get(&part.digest)));
        for (part, known) in batch.parts.iter().zip(&batch.stacks) {
            let find =
                || Resolver { resolved, profile, generated, kernel, histories }.stack(&batch.stack(part));
            let stack = known.unwrap_or_else(|| lately.number(part.digest, find));
            let &Waiting { ns, weight, event, thread, .. } = part;
            batch.keys.push((Key { thread, event, stack }, weight.into()));
            if let Some(moments) = &mut self.moments {
                moments.push(Moment { ns, thread, event, stack, weight });
            }
        }
        self.counts.add(&batch.keys, &mut batch.places);
        batch.clear();
        self.batch = batch;
    }

    /// Names and sums up.
    pub(super) fn finish(mut self, sources: &SymbolSources) -> Profile {
        self.count_batch();
        (self.lately, self.resolved, self.batch) = Default::default();
        self.order();
        naming::name(&mut self.profile, &self.generated, &self.kernel, sources);
        sum(&mut self.profile);
        self.profile
    }

    /// Puts paths, stacks, buckets and samples in order: neighbours have most in common.
    fn order(&mut self) {
        let profile = &mut self.profile;
        let numbers = profile.paths.seal();
        for stack in &mut profile.stacks {
            stack.innermost = numbers.get(stack.innermost as usize).copied().unwrap_or(stack.innermost);
        }
        drop(numbers);
        let stacks = std::mem::take(&mut profile.stacks);
        let mut order: Vec<u32> = (0..stacks.len() as u32).collect();
        order.sort_unstable_by_key(|&place| {
            let Stack { innermost, end } = stacks[place as usize];
            (end, innermost)
        });
        profile.stacks = order.iter().map(|&place| stacks[place as usize]).collect();
        let mut places = vec![0; stacks.len()];
        for (place, &before) in order.iter().enumerate() {
            places[before as usize] = place as u32;
        }
        profile.buckets = std::mem::take(&mut self.counts).into_buckets();
        profile.buckets.iter_mut().for_each(|bucket| bucket.stack = places[bucket.stack as usize]);
        profile.buckets.sort_unstable_by_key(|bucket| (bucket.thread, bucket.event, bucket.stack));
        profile.timeline = self.moments.take().unwrap_or_default();
        profile.timeline.iter_mut().for_each(|moment| moment.stack = places[moment.stack as usize]);
        profile.timeline.sort_by_key(|moment| moment.ns);
    }
}

/// Adds up the buckets.
fn sum(profile: &mut Profile) {
    let mut totals = super::Totals::default();
    let mut of_stack = vec![0; profile.stacks.len()];
    for bucket in &profile.buckets {
        totals.samples += bucket.samples;
        totals.weight += bucket.weight;
        of_stack[bucket.stack as usize] += bucket.samples;
    }
    for (stack, samples) in profile.stacks.iter().zip(of_stack) {
        if stack.end != End::Root as u8 {
            totals.truncated += samples;
        }
        for frame in profile.frames(stack) {
            totals.frames += samples;
            totals.frame_pointer += if frame.found_by == FoundBy::FramePointer as u8 { samples } else { 0 };
            totals.guessed += if frame.found_by == FoundBy::Guess as u8 { samples } else { 0 };
        }
    }
    profile.totals = totals;
}
