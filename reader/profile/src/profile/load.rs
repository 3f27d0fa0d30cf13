//! Loads a profile file into a [`Profile`].
//!
//! The file is read twice: first for processes, modules and threads, whose records may come after samples that need them, then for
//! the samples. Samples are not kept in memory.

use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::RandomState;
use std::path::Path;
use std::sync::mpsc::{channel, sync_channel};
use std::thread::ScopedJoinHandle;

use super::addresses::Addresses;
use super::batch::{Batch, PendingSample};
use super::bucket::{Bucket, LockPair, Stack};
use super::code::{Binary, BinaryKey};
use super::contents::Profile;
use super::generated::Generated;
use super::interpreted::{self, InterpretedFunctions};
use super::kernel::KernelNames;
use super::naming;
use super::preempted;
use super::resolve::{Known, Resolver};
use super::sample_reader::{Indexes, PAIR, SampleReader};
use super::stacks::{Counted, Counts, Key, RecentStacks, Secret};
use super::stored::{self, StoredNames};
use super::timeline::{LossFinder, TimedSample};
use crate::events::{self, Events};
use crate::mappings::{History, Mapping};
use crate::profile_file::{
    Event, GeneratedCode, ModuleInfo, NameSection, ProcessInfo, ProfileError, ProfileReader, SampleRef, Tail,
    ThreadInfo,
};
use crate::stats::Tally;
use crate::symbolize::SymbolSources;
use crate::tracepoint::Wanted;

/// How many batches may wait to be counted.
const AHEAD: usize = 4;
/// How many samples to look up together.
const TOGETHER: usize = 128;

/// Reads and names a profile file.
///
/// # Errors
/// If the file cannot be read. One that is truncated or damaged is read as far as possible
/// ([`Profile::incomplete`]).
pub fn load(path: &Path, sources: &SymbolSources) -> Result<Profile, ProfileError> {
    Loader::default().load(path, sources)
}

/// The same, with every sample at its time ([`Profile::timeline`]) and all fields of events.
///
/// # Errors
/// As [`load`].
pub(crate) fn load_timed(path: &Path, sources: &SymbolSources) -> Result<Profile, ProfileError> {
    let mut loader = Loader { timed_samples: Some(Vec::new()), ..Loader::default() };
    loader.profile.tracepoints.want(Wanted::Everything);
    loader.load(path, sources)
}

/// The same without times, with events distinguished by the wanted fields: [`super::Bucket::fields`].
///
/// # Errors
/// As [`load`].
pub fn load_wanted(path: &Path, sources: &SymbolSources, wanted: Wanted) -> Result<Profile, ProfileError> {
    let mut loader = Loader::default();
    loader.profile.tracepoints.want(wanted);
    loader.load(path, sources)
}

/// The names of a profile file's addresses.
pub struct Resolved {
    /// Generated code found in perf maps that processes left, to be stored before the section.
    pub generated: Vec<GeneratedCode>,
    /// The names, as blocks of the file.
    pub section: Vec<u8>,
    /// How many addresses there are.
    pub addresses: usize,
    /// Notes on what could not be named.
    pub notes: Vec<String>,
}

/// Looks up the names of all addresses in a profile file, to be stored in it.
///
/// # Errors
/// As [`load`].
pub fn resolve(path: &Path, sources: &SymbolSources) -> Result<Resolved, ProfileError> {
    resolve_addresses(path, sources, &Addresses::default(), Vec::new())
}

/// The same without reading the blocks at the ascending offsets `skipped`: they hold only samples, which have only these addresses
/// or those of other blocks.
///
/// # Errors
/// As [`load`].
pub fn resolve_addresses(
    path: &Path,
    sources: &SymbolSources,
    addresses: &Addresses,
    skipped: Vec<u64>,
) -> Result<Resolved, ProfileError> {
    Loader::default().resolve(path, sources, addresses, skipped)
}

/// Builds a profile from events in any order.
pub fn of_events(events: Vec<Event>, sources: &SymbolSources) -> Profile {
    let mut loader = Loader::default();
    let (samples, others): (Vec<_>, Vec<_>) =
        events.into_iter().partition(|event| matches!(event, Event::Sample(_)));
    others.into_iter().for_each(|event| loader.learn(event));
    loader.seal();
    let Ok(()) = loader.count(|take| {
        for event in samples {
            if let Event::Sample(sample) = &event {
                let frames: Vec<u64> = sample.frames.iter().rev().copied().collect();
                take(SampleRef { sample, frames: &frames, shared: 0 });
            }
        }
        Ok::<(), Infallible>(())
    });
    loader.finish(sources)
}

/// A profile being loaded.
#[derive(Default)]
pub(super) struct Loader {
    pub(super) profile: Profile,
    indexes: Indexes,
    /// Mapping history by process index.
    histories: Vec<History>,
    /// Number of the layout by process index and epoch.
    layouts: Vec<Vec<u32>>,
    binaries: HashMap<BinaryKey, u32>,
    generated: Generated,
    interpreted: InterpretedFunctions,
    recent: RecentStacks,
    resolved: Known,
    counts: Counts,
    /// Buffer for the look-up of several samples.
    found: Vec<Option<u32>>,
    /// All samples with their times, if wanted.
    timed_samples: Option<Vec<TimedSample>>,
    /// Number of samples and total delay, by the stacks of waits and their ends.
    pairs: HashMap<(u32, u32), (u64, u64)>,
    kernel: KernelNames,
    /// Names stored in the file.
    stored: Option<StoredNames>,
    events: Events,
}

impl Loader {
    fn load(mut self, path: &Path, sources: &SymbolSources) -> Result<Profile, ProfileError> {
        let mut tally = Tally::default();
        let mut losses = LossFinder::default();
        let mut events = ProfileReader::open(path)?.without_samples().with_names();
        for event in &mut events {
            let event = event?;
            tally.add(&event);
            losses.learn(&event, &mut self.profile.losses);
            self.learn(event);
        }
        self.adopt_names(events.take_names());
        self.seal();
        let samples = ProfileReader::open(path)?;
        let tally_too = &mut tally;
        let mut tail = None;
        let end = &mut tail;
        self.count(|take| {
            *end = samples.for_each_sample(|sample_ref| {
                tally_too.sample(sample_ref);
                take(sample_ref);
            })?;
            Ok::<(), ProfileError>(())
        })?;
        let len = std::fs::metadata(path).map_or(events.bytes(), |metadata| metadata.len());
        // If a sample is damaged, the second reading ends before the first.
        self.profile.incomplete = tail.and_then(|tail: Tail| tail.remark(len));
        self.profile.stats = tally.finish(events.bytes());
        Ok(self.finish(sources))
    }

    /// Takes in the names stored in a file.
    fn adopt_names(&mut self, section: Option<NameSection>) {
        if let Some(section) = section {
            self.generated.is_complete();
            self.stored = Some(StoredNames::new(section));
        }
    }

    /// Finds and names these addresses and those of all samples but in skipped blocks, and keeps nothing else of them.
    fn resolve(
        mut self,
        path: &Path,
        sources: &SymbolSources,
        addresses: &Addresses,
        skipped: Vec<u64>,
    ) -> Result<Resolved, ProfileError> {
        let opened = || Ok(ProfileReader::open(path)?.skipping(skipped.clone()));
        let mut events = opened()?.without_samples().with_names();
        for event in &mut events {
            self.learn(event?);
        }
        let section = events.take_names();
        self.adopt_names(section);
        self.seal();
        let histories = std::mem::take(&mut self.histories);
        let mut unknown = Vec::new();
        let mut last = None;
        let Loader { profile, indexes, layouts, generated, interpreted, kernel, resolved, .. } = &mut self;
        let mut locate = |process, ns, frames: &[u64], shared| {
            let process = indexes.process(process, |process| unknown.push(process));
            let epoch = histories.get(process as usize).map_or(0, |history| history.epoch(ns));
            let layout = layouts.get(process as usize).and_then(|layouts| layouts.get(epoch as usize));
            let layout = layout.copied().unwrap_or(u32::MAX);
            // Equal addresses are the same code only with equal mappings.
            let shared = if last.replace(layout) == Some(layout) { shared } else { 0 };
            let resolver =
                Resolver { resolved, profile, generated, interpreted, kernel, histories: &histories };
            resolver.locate(process, epoch, layout, frames.get(shared..).unwrap_or(&[]));
        };
        addresses.groups().for_each(|(process, ns, frames)| locate(process, ns, frames, 0));
        opened()?.for_each_sample(|SampleRef { sample, frames, shared }| {
            locate(sample.process, sample.ns, frames, shared);
        })?;
        self.name(sources);
        Ok(Resolved {
            generated: self.generated.found(&self.profile),
            section: stored::section(&self.profile),
            addresses: self.profile.locations.len(),
            notes: self.profile.notes,
        })
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
            Event::Function(function) => {
                let process = self.process(function.process);
                self.interpreted.learn(&mut self.profile, process, function);
            }
            Event::Tracepoint(tracepoint) => self.profile.tracepoints.learn(tracepoint),
            Event::KernelSymbol(symbol) => self.kernel.add(symbol),
            Event::LiveBlocks(_) | Event::LiveMappings(_) => self.events.learn(&event),
            Event::Sample(_) | Event::ThreadEnd(_) | Event::Setting(_) | Event::Comparison(_) => {}
            Event::Counters(_) | Event::ProcessEnd(_) | Event::End(_) => {}
        }
    }

    fn process(&mut self, number: u32) -> u32 {
        self.indexes.process(number, |new| {
            self.profile.processes.push(new);
            self.histories.push(History::default());
        })
    }

    fn process_record(&mut self, info: ProcessInfo) {
        let process = self.process(info.id) as usize;
        self.profile.processes[process].info = info;
    }

    fn module(&mut self, module: ModuleInfo) {
        let process = self.process(module.process);
        let next = self.profile.binaries.len() as u32;
        let key = Binary::key(&module.path, &module.build_id, module.file);
        let binary = *self.binaries.entry(key).or_insert(next);
        if binary == next {
            let ModuleInfo { path, build_id, file, .. } = module;
            self.profile.binaries.push(Binary { path, build_id, file, origin: None, read: false });
        }
        let mapping = Mapping { start: module.start, end: module.end, bias: module.bias, binary };
        self.histories[process as usize].map(module.module, module.loaded_ns, mapping);
    }

    fn thread_name(&mut self, process: u32, tid: u32, seq: u32, name: String) {
        let process = self.process(process);
        let thread = self.indexes.thread(process, tid, seq);
        if !name.is_empty() {
            self.indexes.all_threads[thread as usize].name = name;
        }
    }

    /// Ends the first reading.
    pub(super) fn seal(&mut self) {
        let secret = RandomState::new();
        self.histories.iter_mut().for_each(|history| history.seal(&secret));
        self.number_layouts();
        let Profile { session, processes, measures, main, .. } = &mut self.profile;
        let known = processes.iter().map(|process| (&process.info.source, process.info.period_ns));
        self.events = Events::new(session, known).with_learnt_of(&mut self.events);
        *measures = self.events.measures().to_vec();
        *main = self.events.main() as u8;
    }

    /// Numbers the mapping layouts; equal layouts get the same number, also across processes.
    fn number_layouts(&mut self) {
        let mut numbers = HashMap::new();
        for (process, history) in self.histories.iter().enumerate() {
            let info = &self.profile.processes[process].info;
            let of_its_own =
                self.generated.is_of(process as u32, info) || self.interpreted.is_of(process as u32);
            let alone = of_its_own.then_some(process);
            let number = |epoch| {
                let next = numbers.len() as u32;
                *numbers.entry((alone, history.layout(epoch))).or_insert(next)
            };
            self.layouts.push((0..history.epochs()).map(number).collect());
        }
    }

    /// Second reading: counts the samples that `read` passes to its argument. Reading, finding stacks and counting each have
    /// their own thread, where so many can be started.
    pub(super) fn count<E: Send>(
        &mut self,
        read: impl FnOnce(&mut dyn FnMut(SampleRef<'_>)) -> Result<(), E> + Send,
    ) -> Result<(), E> {
        let mut indexes = std::mem::take(&mut self.indexes);
        let histories = std::mem::take(&mut self.histories);
        let layouts = std::mem::take(&mut self.layouts);
        let mut counts = std::mem::take(&mut self.counts);
        let events = std::mem::take(&mut self.events);
        let mut tracepoints = std::mem::take(&mut self.profile.tracepoints);
        let mut reader = SampleReader::new(
            &histories,
            &layouts,
            &mut indexes,
            &events,
            &mut tracepoints,
            Secret::default(),
        );
        let (full, batches) = sync_channel::<Batch>(AHEAD);
        let (empty, used) = channel::<Batch>();
        let (found, to_count) = sync_channel::<Vec<Counted>>(AHEAD);
        let mut read = Some(read);
        let in_threads = std::thread::scope(|scope| {
            let (reader, read, counts) = (&mut reader, &mut read, &mut counts);
            let count = move || to_count.iter().for_each(|keys| counts.add(&keys));
            let counter = std::thread::Builder::new().spawn_scoped(scope, count).ok()?;
            let take_in = move || {
                let result = read.take()?(&mut |sample_ref| {
                    if reader.take(sample_ref) {
                        let next = used.try_recv().unwrap_or_default();
                        // Sending fails only if the counting thread has panicked, which is reported there.
                        let _ = full.send(std::mem::replace(&mut reader.batch, next));
                    }
                });
                let _ = full.send(std::mem::take(&mut reader.batch));
                Some(result)
            };
            let reader = std::thread::Builder::new().spawn_scoped(scope, take_in).ok()?;
            for mut batch in batches {
                let _ = found.send(self.find_stacks(&batch, &histories));
                batch.clear();
                let _ = empty.send(batch);
            }
            drop(found);
            joined(counter);
            joined(reader)
        });
        let result = match (in_threads, read) {
            (None, Some(read)) => {
                let mut count_batch = |reader: &mut SampleReader<'_>| {
                    counts.add(&self.find_stacks(&reader.batch, &histories));
                    reader.batch.clear();
                };
                let result = read(&mut |sample_ref| {
                    if reader.take(sample_ref) {
                        count_batch(&mut reader);
                    }
                });
                count_batch(&mut reader);
                result
            }
            (result, _) => result.unwrap_or(Ok(())),
        };
        self.counts = counts;
        self.profile.processes.append(&mut reader.unknown);
        self.profile.tracepoints = tracepoints;
        self.profile.threads = std::mem::take(&mut indexes.all_threads);
        result
    }

    /// The stacks of samples.
    fn find_stacks(&mut self, batch: &Batch, histories: &[History]) -> Vec<Counted> {
        let Loader {
            profile,
            generated,
            interpreted,
            kernel,
            recent,
            resolved,
            found,
            timed_samples,
            pairs,
            ..
        } = self;
        let mut keys = Vec::with_capacity(batch.pending.len());
        for chunk in batch.pending.chunks(TOGETHER) {
            found.clear();
            found.extend(chunk.iter().map(|pending| recent.get(&pending.digest)));
            for (pending, known) in chunk.iter().zip(&*found) {
                let find = || {
                    Resolver { resolved, profile, generated, interpreted, kernel, histories }
                        .stack(&batch.stack(pending))
                };
                let stack = known.unwrap_or_else(|| recent.number(pending.digest, find));
                let &PendingSample { ns, samples, weight, event, fields, thread, .. } = pending;
                if event == PAIR {
                    // The count before it is the holder's.
                    if let Some(Counted { key: Key { stack: holder, .. }, .. }) = keys.last() {
                        let sum = pairs.entry((stack, *holder)).or_default();
                        *sum = (sum.0 + 1, sum.1 + weight);
                    }
                    continue;
                }
                keys.push(Counted { key: Key { thread, event, stack, fields }, samples, weight });
                if let Some(timed_samples) = timed_samples {
                    let weight = u32::try_from(weight).unwrap_or(u32::MAX);
                    timed_samples.push(TimedSample { ns, thread, event, stack, fields, weight });
                }
            }
        }
        keys
    }

    /// Names and sums up.
    pub(super) fn finish(mut self, sources: &SymbolSources) -> Profile {
        (self.recent, self.resolved) = Default::default();
        self.name(sources);
        let pairs = std::mem::take(&mut self.pairs).into_iter();
        let pair = |((wait, holder), (samples, delay_ns))| LockPair { wait, holder, samples, delay_ns };
        self.profile.lock_pairs = pairs.map(pair).collect();
        if !sources.interpreted.internals {
            interpreted::fold(&mut self.profile, &mut self.counts, &mut self.timed_samples);
        }
        preempted::fold(&mut self.profile, &mut self.counts, &mut self.timed_samples);
        self.order();
        self.profile.sum();
        self.profile
    }

    fn name(&mut self, sources: &SymbolSources) {
        let known = naming::Known {
            generated: &self.generated,
            interpreted: &self.interpreted,
            kernel: &self.kernel,
            stored: self.stored.as_ref(),
        };
        naming::name(&mut self.profile, &known, sources);
    }

    /// Sorts paths, stacks, buckets and samples so that neighbours share most.
    fn order(&mut self) {
        let profile = &mut self.profile;
        let numbers = profile.paths.seal();
        for stack in &mut profile.stacks {
            stack.innermost = numbers.get(stack.innermost as usize).copied().unwrap_or(stack.innermost);
        }
        drop(numbers);
        let stacks = std::mem::take(&mut profile.stacks);
        let mut order: Vec<u32> = (0..stacks.len() as u32).collect();
        order.sort_unstable_by_key(|&stack| {
            let Stack { innermost, end } = stacks[stack as usize];
            (end, innermost)
        });
        profile.stacks = order.iter().map(|&stack| stacks[stack as usize]).collect();
        let mut new_numbers = vec![0; stacks.len()];
        for (number, &before) in order.iter().enumerate() {
            new_numbers[before as usize] = number as u32;
        }
        profile.renumber_pairs(&new_numbers);
        profile.buckets = std::mem::take(&mut self.counts).into_buckets();
        profile.buckets.iter_mut().for_each(|bucket| bucket.stack = new_numbers[bucket.stack as usize]);
        let order = |bucket: &Bucket| (bucket.thread, bucket.event, bucket.stack, bucket.fields);
        profile.buckets.sort_unstable_by_key(order);
        if profile.buckets.iter().any(|bucket| usize::from(bucket.event) >= profile.measures.len()) {
            profile.measures.push(events::UNCLAIMED.clone());
        }
        profile.timeline = self.timed_samples.take().unwrap_or_default();
        profile.timeline.iter_mut().for_each(|timed| timed.stack = new_numbers[timed.stack as usize]);
        profile.timeline.sort_by_key(|timed| timed.ns);
    }
}

/// The result of a thread; propagates its panic.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
