//! A profile in memory: named stacks with their weights.
//!
//! Its size depends on the number of distinct stacks, not of samples. The weights of the buckets add up exactly to the weight of
//! all samples; every output is generated from the buckets alone, so it has that total.

mod addresses;
mod batch;
mod generated;
mod interpreted;
mod kernel;
mod load;
mod naming;
mod resolve;
mod sample_reader;
mod stacks;
mod stored;
mod timeline;

#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use unwind::{End, Frame};

pub use addresses::Addresses;
pub(crate) use load::load_timed;
pub use load::{Resolved, load, load_wanted, of_events, resolve, resolve_addresses};
pub(crate) use timeline::LossFinder;
pub use timeline::{Loss, TimedSample};

use stacks::{Paths, ROOT};

use crate::events::{self, NoSuchEvent};
use crate::file_name::base_name;
use crate::measure::{Measure, Unit, Weighed};
use crate::names::{NameId, Names};
use crate::profile_file::{FileIdentity, NO_ANSWER, ProcessInfo, SessionInfo};
use crate::stats::Stats;
use crate::symbolize::Origin;
use crate::tracepoint::Tracepoints;

/// Number of a function in [`Profile::functions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

/// A function: a name in a binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Function {
    /// Readable name.
    pub name: NameId,
    /// Index in [`Profile::binaries`]; none for code outside all modules.
    pub binary: Option<u32>,
}

/// A function at a line of its source, as in pprof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceLine {
    /// The function.
    pub function: FunctionId,
    /// Its linkage (mangled) name; the readable one if there is no other.
    pub linkage: NameId,
    /// Source file.
    pub file: Option<NameId>,
    /// Source line, 0 if unknown.
    pub line: u32,
    /// The function is inlined into the next one.
    pub inlined: bool,
}

/// A sampled address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Index in [`Profile::binaries`]; none for code outside all modules.
    pub binary: Option<u32>,
    /// The address to look up: in the binary's ELF file or, without a binary, in the process.
    pub address: u64,
    /// Its functions in [`Profile::lines`], innermost first, at least one.
    pub lines: Range<u32>,
}

/// An ELF file, the same for all processes that map it.
#[derive(Debug, Clone)]
pub struct Binary {
    /// Where it was first seen.
    pub path: PathBuf,
    /// Its build-id; empty if it has none.
    pub build_id: Vec<u8>,
    /// The file as it was when it was mapped, if it has no build-id.
    pub file: Option<FileIdentity>,
    /// Where its names come from; none if it has no samples.
    pub origin: Option<Origin>,
    /// Its files were read for names; otherwise all names were stored or cached.
    pub read: bool,
}

impl Binary {
    /// Its identity: its build-id, or else its file.
    fn key(path: &Path, build_id: &[u8], file: Option<FileIdentity>) -> stored::BinaryKey {
        (build_id.to_vec(), build_id.is_empty().then(|| (path.to_owned(), file)))
    }
}

/// A process image.
#[derive(Debug, Clone)]
pub struct Process {
    /// What was recorded of it.
    pub info: ProcessInfo,
}

impl Process {
    /// A short name: that by which it was started (such as `redis-server`, though the executable may have many names), else that of
    /// the executable.
    pub fn name(&self) -> String {
        let called = self.info.argv.first().map(|argument| base_name(Path::new(argument)));
        // The name of a login shell begins with `-`.
        let called = called.map(|name| name.trim_start_matches('-').to_owned());
        let name = called.filter(|name| !name.is_empty()).unwrap_or_else(|| base_name(&self.info.exe));
        if name.is_empty() { "?".into() } else { name }
    }
}

/// A thread of a process.
#[derive(Debug, Clone)]
pub struct Thread {
    /// Index in [`Profile::processes`].
    pub process: u32,
    /// Kernel thread id.
    pub tid: u32,
    /// Number of the thread in its process.
    pub seq: u32,
    /// Its last known name.
    pub name: String,
}

/// A distinct stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stack {
    /// The node of the profile's paths at which it ends.
    innermost: u32,
    /// Why the walk ended, see [`End`].
    pub end: u8,
}

/// The path from the root to the current stack, see [`Profile::follow`].
#[derive(Debug, Default)]
pub struct Trail(Vec<u32>, Vec<u32>);

/// One physical frame of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StackFrame {
    /// Index in [`Profile::locations`].
    pub location: u32,
    /// How it was found.
    pub found_by: u8,
}

impl From<StackFrame> for u64 {
    fn from(frame: StackFrame) -> u64 {
        u64::from(frame.location) << 8 | u64::from(frame.found_by)
    }
}

/// All samples of one thread and event with the same stack.
#[derive(Debug, Clone, PartialEq)]
pub struct Bucket {
    /// Index in [`Profile::threads`].
    pub thread: u32,
    /// Index in [`Profile::measures`].
    pub event: u8,
    /// Index in [`Profile::stacks`].
    pub stack: u32,
    /// Number of the events' fields, see [`Tracepoints::carried`]; 0 for none, or if not wanted.
    pub fields: u32,
    /// Samples.
    pub samples: u64,
    /// Their weight in timer periods, or in units of the measure.
    pub weight: u64,
    /// The sum of the squares of their weights.
    pub squares: f64,
}

/// The totals of a profile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Samples.
    pub samples: u64,
    /// Their weight.
    pub weight: u64,
    /// Samples whose stack is incomplete.
    pub truncated: u64,
    /// Frames, each counted once per sample.
    pub frames: u64,
    /// Frames found by frame pointer, counted likewise.
    pub frame_pointer: u64,
    /// Guessed frames, counted likewise.
    pub guessed: u64,
}

/// A profile.
#[derive(Debug, Default)]
pub struct Profile {
    /// How it was recorded.
    pub session: SessionInfo,
    /// What the weights of each event count.
    pub measures: Vec<Measure>,
    /// Index of the main event, which is shown if only one can be.
    pub main: u8,
    /// Notes for the user on what is missing or unusual.
    pub notes: Vec<String>,
    /// Which part of the file could not be read.
    pub incomplete: Option<String>,
    /// Tracepoints of the processes, and the fields of their events.
    pub tracepoints: Tracepoints,
    /// All texts.
    pub names: Names,
    /// Process images in the order of their records.
    pub processes: Vec<Process>,
    /// Threads in the order of their first record or sample.
    pub threads: Vec<Thread>,
    /// Binaries in the order of their first record.
    pub binaries: Vec<Binary>,
    /// Indexes in [`Profile::binaries`] of the kernel and its modules.
    pub kernel_binaries: Vec<u32>,
    /// Indexes in [`Profile::binaries`] of source files with interpreted functions, and the mark of their language.
    pub interpreted_binaries: BTreeMap<u32, String>,
    /// Functions.
    pub functions: Vec<Function>,
    /// Functions at source lines.
    pub lines: Vec<SourceLine>,
    /// Sampled addresses.
    pub locations: Vec<Location>,
    /// The frames of all stacks.
    paths: Paths<StackFrame>,
    /// Distinct stacks.
    pub stacks: Vec<Stack>,
    /// Samples by thread and stack.
    pub buckets: Vec<Bucket>,
    /// Waits for locks with the stacks that ended them, longest delay first.
    pub lock_pairs: Vec<LockPair>,
    /// All samples in timestamp order if loaded by `load_timed`; otherwise empty.
    pub timeline: Vec<TimedSample>,
    /// When samples were lost, as far as that is known.
    pub losses: Vec<Loss>,
    /// The totals of the main event.
    pub totals: Totals,
    /// Statistics of the file: losses, threads, processes.
    pub stats: Stats,
    /// The function shown at the root of stacks that ended for each reason, by number.
    truncated: Vec<(u8, FunctionId)>,
}

/// Waits for locks at one stack that were ended at one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockPair {
    /// The waiting stack: index in [`Profile::stacks`].
    pub wait: u32,
    /// The stack that released the lock or woke the waiter.
    pub holder: u32,
    /// Samples.
    pub samples: u64,
    /// Total delay in nanoseconds that they represent.
    pub delay_ns: u64,
}

impl Profile {
    /// Renumbers the stacks of waits and their ends, and merges pairs that become equal.
    fn renumber_pairs(&mut self, numbers: &[u32]) {
        let mut sums: BTreeMap<(u32, u32), (u64, u64)> = BTreeMap::new();
        let number = |stack: u32| numbers.get(stack as usize).copied().unwrap_or(stack);
        for pair in &self.lock_pairs {
            let sum = sums.entry((number(pair.wait), number(pair.holder))).or_default();
            *sum = (sum.0 + pair.samples, sum.1 + pair.delay_ns);
        }
        let pair = |((wait, holder), (samples, delay_ns))| LockPair { wait, holder, samples, delay_ns };
        self.lock_pairs = sums.into_iter().map(pair).collect();
        self.lock_pairs.sort_by_key(|pair| std::cmp::Reverse(pair.delay_ns));
    }

    /// The frames of a stack, leaf first.
    pub fn frames(&self, stack: &Stack) -> impl Iterator<Item = StackFrame> + '_ {
        self.paths.down(stack.innermost)
    }

    /// The frames of a stack, root first.
    pub fn frames_from_root(&self, stack: &Stack) -> Vec<StackFrame> {
        let mut frames: Vec<StackFrame> = self.frames(stack).collect();
        frames.reverse();
        frames
    }

    /// Moves from the previous stack to this one. Returns how many frames they share, counted from the root, and the other frames.
    /// Stacks are sorted so that neighbours share most.
    pub fn follow<'a>(
        &'a self,
        stack: &Stack,
        trail: &'a mut Trail,
    ) -> (usize, impl Iterator<Item = StackFrame> + 'a) {
        let nodes = &mut trail.0;
        let new = &mut trail.1;
        new.clear();
        let mut at = stack.innermost;
        while at != ROOT {
            // Nodes nearer to the root have smaller numbers.
            while nodes.last().is_some_and(|&last| last > at) {
                nodes.pop();
            }
            if nodes.last() == Some(&at) {
                break;
            }
            new.push(at);
            at = self.paths.node(at).0;
        }
        if at == ROOT {
            nodes.clear();
        }
        let shared = nodes.len();
        nodes.extend(new.iter().rev());
        (shared, nodes[shared..].iter().map(|&node| self.paths.node(node).1))
    }

    /// The functions at a location, innermost first.
    pub(crate) fn lines_of(&self, location: u32) -> &[SourceLine] {
        let lines = &self.locations[location as usize].lines;
        &self.lines[lines.start as usize..lines.end as usize]
    }

    /// The functions of a stack, root first, including inlined ones. The first is a marker such as `[truncated: no-cfi]` if the stack
    /// is truncated.
    pub fn functions_from_root(&self, stack: &Stack) -> impl Iterator<Item = FunctionId> + '_ {
        let mark = self.truncation_function(stack.end);
        let frames = self.frames_from_root(stack).into_iter();
        mark.into_iter()
            .chain(frames.flat_map(|frame| self.lines_of(frame.location).iter().rev().map(|p| p.function)))
    }

    /// The marker function at the root of stacks that ended for this reason; `None` if they are complete, or there are none.
    pub(crate) fn truncation_function(&self, end: u8) -> Option<FunctionId> {
        self.truncated.iter().find(|&&(reason, _)| reason == end).map(|&(_, function)| function)
    }

    /// The name of a function.
    pub fn function_name(&self, function: FunctionId) -> &str {
        self.names.get(self.functions[function.0 as usize].name)
    }

    /// The short name of the binary of a function; empty outside all modules.
    pub fn module_name(&self, function: FunctionId) -> String {
        let binary = self.functions[function.0 as usize].binary;
        binary.map(|binary| base_name(&self.binaries[binary as usize].path)).unwrap_or_default()
    }

    /// True for a function of the kernel.
    pub(crate) fn is_kernel(&self, function: FunctionId) -> bool {
        let binary = self.functions[function.0 as usize].binary;
        binary.is_some_and(|binary| self.kernel_binaries.contains(&binary))
    }

    /// Index of the event of this name.
    ///
    /// # Errors
    /// If the profile has none; the error lists the available ones.
    pub fn event(&self, name: &str) -> Result<u8, NoSuchEvent> {
        events::index_of(&self.measures, name)
    }

    /// Makes this the main event.
    pub(crate) fn prefer(&mut self, event: u8) {
        self.main = event;
        load::sum(self);
    }

    /// Drops all other events.
    pub fn choose(&mut self, event: u8) {
        self.buckets.retain(|bucket| bucket.event == event);
        self.buckets.iter_mut().for_each(|bucket| bucket.event = 0);
        self.timeline.retain(|moment| moment.event == event);
        self.timeline.iter_mut().for_each(|moment| moment.event = 0);
        self.measures = vec![self.measure(event).clone()];
        self.prefer(0);
    }

    /// The other events of the recording.
    pub fn other_events(&self) -> impl Iterator<Item = &Weighed> {
        let all = self.stats.detail.weights.iter();
        all.filter(|other| self.measures.iter().all(|measure| measure.name != other.event))
    }

    /// What the weights of an event count.
    pub fn measure(&self, event: u8) -> &Measure {
        self.measures.get(usize::from(event)).unwrap_or(&events::UNCLAIMED)
    }

    /// Nanoseconds of CPU time per unit of weight of an event in a thread: as reported by the process, or else as requested; 0 if neither
    /// is known, or weights are not CPU time.
    pub fn period_ns(&self, thread: u32, event: u8) -> u64 {
        let Unit::CpuPeriod(fixed) = self.measure(event).unit else { return 0 };
        match (fixed, self.process_of(thread).info.period_ns, self.session.frequency) {
            (Some(period), ..) => period,
            (None, 0, 0) => 0,
            (None, 0, frequency) => 1_000_000_000 / u64::from(frequency),
            (None, period, _) => period,
        }
    }

    /// The weight of the main event in words, if it is not CPU time.
    pub fn weight_in_words(&self) -> Option<String> {
        let main = self.measure(self.main);
        (!main.is_cpu_time()).then(|| main.describe(self.totals.weight))
    }

    /// The process of a thread.
    pub fn process_of(&self, thread: u32) -> &Process {
        &self.processes[self.threads[thread as usize].process as usize]
    }
}

/// The marker at the root of a stack that ended for this reason; `None` if it is complete.
pub fn truncation_mark(end: u8) -> Option<String> {
    match End::from_number(end) {
        None if end == NO_ANSWER => Some("[truncated: no-answer]".into()),
        Some(end) if end.is_complete() => None,
        Some(end) => Some(format!("[truncated: {}]", end.name())),
        None => Some(format!("[truncated: reason {end}]")),
    }
}

/// How a frame was found, as named in outputs.
pub(crate) fn found_by_name(found_by: u8) -> &'static str {
    if found_by == kernel::KERNEL {
        return "kernel";
    }
    match Frame::from_bits(u64::from(found_by) << 62).found_by() {
        unwind::FoundBy::Cfi => "cfi",
        unwind::FoundBy::FramePointer => "frame-pointer",
        unwind::FoundBy::Guess => "guess",
        unwind::FoundBy::Region => "region",
    }
}
