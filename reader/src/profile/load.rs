//! From the events of a profile file to a [`Profile`].
//!
//! The file is read twice: first for processes, modules and threads, whose records may come after the
//! samples that need them, then for the samples.

use std::collections::HashMap;
use std::path::Path;

use super::generated::Generated;
use super::kernel::KernelNames;
use super::naming;
use super::resolve::Resolver;
use super::stacks::{Interned, RawStack, WordMap};
use super::timeline::{LossFinder, Moment};
use super::{Binary, Bucket, Process, Profile, Thread, truncation_mark};
use crate::mappings::{History, Mapping, Replay};
use crate::measure::Measure;
use crate::profile_file::{
    Event, ModuleInfo, ProcessInfo, ProfileError, ProfileReader, Sample, SamplePart, Tail, ThreadInfo,
};
use crate::stats::Tally;
use crate::symbolize::SymbolSources;

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
    raw: Interned,
    /// Samples and weight by thread, event and raw stack.
    counted: WordMap<(u32, u32, u32), (u64, u64)>,
    /// Samples at their times, with the numbers of raw stacks.
    moments: Option<Vec<Moment>>,
    kernel: KernelNames,
    scratch: Vec<u64>,
}

impl Loader {
    fn load(mut self, path: &Path, sources: &SymbolSources) -> Result<Profile, ProfileError> {
        let mut tally = Tally::default();
        let mut losses = LossFinder::default();
        let mut events = ProfileReader::open(path)?.without_frames();
        for event in &mut events {
            let event = event?;
            tally.add(&event);
            losses.learn(&event, &mut self.profile.losses);
            self.learn(event);
        }
        self.profile.stats = tally.finish(events.bytes());
        self.profile.notes.extend(events.tail().and_then(tail_note));
        self.seal();
        for event in ProfileReader::open(path)? {
            if let Event::Sample(sample) = event? {
                self.count(&sample);
            }
        }
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
        for SamplePart { ns, weight: part, event, kernel } in sample.parts() {
            let stack = RawStack { process, epoch, end: sample.end, kernel, frames: &sample.frames };
            stack.encode(&mut self.scratch);
            let (stack, _) = self.raw.intern(&self.scratch);
            let (samples, weight) = self.counted.entry((thread, event.into(), stack)).or_default();
            *samples += 1;
            *weight += u64::from(part);
            if let Some(moments) = &mut self.moments {
                moments.push(Moment { ns, thread, event, stack, weight: part });
            }
        }
    }

    /// Resolves, names and sums up.
    pub(super) fn finish(mut self, sources: &SymbolSources) -> Profile {
        let raw = std::mem::take(&mut self.raw).into_list();
        let mut generated = std::mem::take(&mut self.generated);
        let stacks = self.resolve(&raw, &mut generated);
        drop(raw);
        naming::name(&mut self.profile, &generated, &self.kernel, sources);
        self.merge(&stacks);
        sum(&mut self.profile);
        // The first reading leaves frames out.
        let Profile { stats, totals, .. } = &mut self.profile;
        let mean = totals.frames as f64 / totals.samples.max(1) as f64;
        stats.detail.frames_per_sample = (mean * 10.0).round() / 10.0;
        self.profile
    }

    /// Finds the binary of every address at the time of its stack; gives the place of each raw stack's stack.
    fn resolve(&mut self, raw: &[Box<[u64]>], generated: &mut Generated) -> Vec<u32> {
        let mut order: Vec<u32> = (0..raw.len() as u32).collect();
        // The first word is process and epoch: each history is replayed once, forwards.
        order.sort_unstable_by_key(|&number| (raw[number as usize][0], number));
        let mut resolver = Resolver::default();
        let mut places = vec![0; raw.len()];
        let mut replay: Option<(u32, Replay<'_>)> = None;
        for number in order {
            let stack = RawStack::decode(&raw[number as usize]);
            if replay.as_ref().is_none_or(|&(process, _)| process != stack.process) {
                replay = Some((stack.process, self.histories[stack.process as usize].replay()));
            }
            let Some((_, replay)) = &mut replay else { continue };
            replay.advance(stack.epoch);
            places[number as usize] =
                resolver.stack(&mut self.profile, &stack, replay, generated, &mut self.kernel);
        }
        places
    }

    /// Moves the counts from raw stacks to stacks.
    fn merge(&mut self, stacks: &[u32]) {
        let mut timeline = self.moments.take().unwrap_or_default();
        timeline.iter_mut().for_each(|moment| moment.stack = stacks[moment.stack as usize]);
        timeline.sort_by_key(|moment| moment.ns);
        self.profile.timeline = timeline;
        let mut merged: WordMap<(u32, u32, u32), (u64, u64)> = WordMap::default();
        for ((thread, event, raw), (samples, weight)) in self.counted.drain() {
            let bucket = merged.entry((thread, event, stacks[raw as usize])).or_default();
            bucket.0 += samples;
            bucket.1 += weight;
        }
        let bucket = |((thread, event, stack), (samples, weight))| Bucket {
            thread,
            event: event as u8,
            stack,
            samples,
            weight,
        };
        self.profile.buckets = merged.into_iter().map(bucket).collect();
        self.profile.buckets.sort_unstable_by_key(|bucket| (bucket.thread, bucket.event, bucket.stack));
    }
}

/// Adds up the buckets.
fn sum(profile: &mut Profile) {
    let mut totals = super::Totals::default();
    for bucket in &profile.buckets {
        let stack = &profile.stacks[bucket.stack as usize];
        totals.samples += bucket.samples;
        totals.weight += bucket.weight;
        if truncation_mark(stack.end).is_some() {
            totals.truncated += bucket.samples;
        }
        for frame in profile.frames(stack) {
            totals.frames += bucket.samples;
            match frame.found_by {
                1 => totals.frame_pointer += bucket.samples,
                2 => totals.guessed += bucket.samples,
                _ => {}
            }
        }
    }
    profile.totals = totals;
}
