//! All that a profile holds, and what can be asked of it.

use std::collections::BTreeMap;

use unwind::{End, FoundBy};

use super::bucket::{Bucket, LockPair, Stack, StackFrame, Totals};
use super::code::{Binary, Function, FunctionId, Location, SourceLine};
use super::process::{Process, Thread};
use super::stacks::{Paths, ROOT};
use super::timeline::{Loss, TimedSample};
use crate::events::{self, NoSuchEvent};
use crate::file_name::base_name;
use crate::measure::{Measure, Unit, Weighed};
use crate::names::Names;
use crate::profile_file::SessionInfo;
use crate::stats::Stats;
use crate::tracepoint::Tracepoints;

/// The path from the root to the current stack, see [`Profile::follow`].
#[derive(Debug, Default)]
pub struct Trail(Vec<u32>, Vec<u32>);

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
    pub(super) paths: Paths<StackFrame>,
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
    pub(super) truncated: Vec<(u8, FunctionId)>,
}

impl Profile {
    /// Renumbers the stacks of waits and their ends, and merges pairs that become equal.
    pub(super) fn renumber_pairs(&mut self, numbers: &[u32]) {
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
        self.sum();
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

    /// Sums up the buckets of the main event. Different events have different units.
    pub(super) fn sum(&mut self) {
        let mut totals = Totals::default();
        let mut of_stack = vec![0; self.stacks.len()];
        for bucket in self.buckets.iter().filter(|bucket| bucket.event == self.main) {
            totals.samples += bucket.samples;
            totals.weight += bucket.weight;
            of_stack[bucket.stack as usize] += bucket.samples;
        }
        for (stack, samples) in self.stacks.iter().zip(of_stack) {
            if stack.end != End::Root as u8 {
                totals.truncated += samples;
            }
            for frame in self.frames(stack) {
                totals.frames += samples;
                totals.frame_pointer +=
                    if frame.found_by == FoundBy::FramePointer as u8 { samples } else { 0 };
                totals.guessed += if frame.found_by == FoundBy::Guess as u8 { samples } else { 0 };
            }
        }
        self.totals = totals;
    }
}
