//! The selected part of a profile, as labelled stacks.
//!
//! Filters select complete stacks, so that what is shown has a well-defined total. Only `root` cuts stacks, at the outermost call of a
//! function.

mod heavy_tree;

use std::collections::{BTreeMap, HashMap};

use regex_lite::Regex;
use unwind::{FoundBy, Frame};

use crate::call_tree::{Stacks, Step};
use crate::file_name::base_name;
use crate::names::NameId;
use crate::profile::{Bucket, FunctionId, Profile, Stack, StackFrame, Trail};
use crate::tracepoint::Carried;

/// What one element of a stack stands for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unit {
    /// A function.
    #[default]
    Function,
    /// A line of a function.
    Line,
    /// A binary; calls inside it are not told apart.
    Module,
}

/// Headings added above the root of each stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Heading {
    /// Nothing.
    #[default]
    None,
    /// The processes of one name together; nothing when all have the same name.
    ProgramsIfSeveral,
    /// The processes of one name together.
    Programs,
    /// Each process.
    Processes,
    /// Each thread.
    Threads,
    /// The events that carry the same of what the profile was read for: a field, or the names of tracepoints.
    Values,
}

/// Filters for stacks: those are selected for which all given filters match.
#[derive(Debug, Clone, Default)]
pub struct Filters {
    /// Name or id of the thread.
    pub thread: Option<Regex>,
    /// Name or id of the process.
    pub process: Option<Regex>,
    /// File name of a binary that the stack passes through.
    pub module: Option<Regex>,
    /// A function that the stack passes through.
    pub symbol: Option<Regex>,
    /// A function that the stack passes through and begins with when shown; the outermost one.
    pub root: Option<Regex>,
}

impl Filters {
    /// The filters as the flags that give them; empty if there are none.
    pub fn flags(&self) -> String {
        let all = [
            ("thread", &self.thread),
            ("process", &self.process),
            ("module", &self.module),
            ("symbol", &self.symbol),
            ("root", &self.root),
        ];
        let given = all.iter().filter_map(|(name, regex)| Some(format!("--{name} {}", regex.as_ref()?)));
        given.collect::<Vec<_>>().join(" ")
    }
}

/// How far to build a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// Completely.
    Whole,
    /// Every node of at least this weight.
    AtLeast(u64),
    /// Until this many nodes of each group of stacks, the heaviest first, have all their children.
    Heaviest(usize),
}

/// What a label stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Label {
    /// A function.
    Function(FunctionId),
    /// A line of a function: the file's name and the number of the line, 0 if unknown.
    Line(FunctionId, Option<NameId>, u32),
    /// A binary, by its index in the profile; none for code outside all modules.
    Module(Option<u32>),
    /// A mark at the root of an incomplete stack.
    Mark(FunctionId),
    /// The processes under a heading.
    Processes(Vec<u32>),
    /// A thread, by its index in the profile.
    Thread(u32),
    /// A tracepoint, or the value of a field.
    Value,
}

/// Which heading stands above a stack.
enum Headings {
    /// By the index of the thread.
    OfThreads(Vec<Option<u32>>),
    /// By the number of what the event carries.
    OfValues(HashMap<u32, u32>),
}

impl Headings {
    fn of(&self, bucket: &Bucket) -> Option<u32> {
        match self {
            Headings::OfThreads(of_thread) => of_thread[bucket.thread as usize],
            Headings::OfValues(of_value) => of_value.get(&bucket.fields).copied(),
        }
    }
}

/// One stack under one heading.
struct Chosen {
    heading: Option<u32>,
    stack: u32,
    /// Elements that are not shown, from the root.
    skip: u32,
    weight: u64,
}

/// The selected part of a profile's main event.
pub struct Selection<'p> {
    profile: &'p Profile,
    labels: Vec<(Label, String)>,
    /// The label of each of the profile's lines.
    of_line: Vec<u32>,
    /// The label of the mark of each reason for an incomplete stack.
    marks: BTreeMap<u8, u32>,
    unit: Unit,
    chosen: Vec<Chosen>,
    /// Samples and weight of each thread that was chosen, by its index in the profile.
    threads: BTreeMap<u32, (u64, u64)>,
    weight: u64,
    /// Sum of the squares of the weights of the samples.
    squares: f64,
    headed: bool,
}

impl<'p> Selection<'p> {
    /// Selects from a profile.
    pub fn new(profile: &'p Profile, unit: Unit, heading: Heading, filters: &Filters) -> Self {
        let mut selection = Selection {
            profile,
            labels: Vec::new(),
            of_line: Vec::new(),
            marks: BTreeMap::new(),
            unit,
            chosen: Vec::new(),
            threads: BTreeMap::new(),
            weight: 0,
            squares: 0.0,
            headed: false,
        };
        selection.label_lines();
        let headings = match heading {
            Heading::Values => selection.label_values(),
            _ => Headings::OfThreads(selection.label_headings(heading)),
        };
        selection.choose(&headings, &Matcher::new(profile, filters));
        selection
    }

    /// Total weight of the selection.
    pub fn weight(&self) -> u64 {
        self.weight
    }

    /// Kish's effective sample size (Survey Sampling, 1965): how many samples of equal weight have the same significance. A long wait among
    /// short ones is one observation, however large its weight.
    pub fn effective_samples(&self) -> f64 {
        if self.squares == 0.0 { 0.0 } else { (self.weight as f64).powi(2) / self.squares }
    }

    /// The profile it is part of.
    pub fn profile(&self) -> &'p Profile {
        self.profile
    }

    /// What a label stands for.
    pub fn label(&self, label: u32) -> &Label {
        &self.labels[label as usize].0
    }

    /// Elements at the root of each stack that are headings.
    pub fn headings(&self) -> usize {
        usize::from(self.headed)
    }

    /// Index, samples and weight of the threads chosen, the heaviest first.
    pub fn threads(&self) -> Vec<(u32, u64, u64)> {
        let mut rows: Vec<_> = self.threads.iter().map(|(&index, &(s, w))| (index, s, w)).collect();
        rows.sort_by_key(|&(index, _, weight)| (std::cmp::Reverse(weight), index));
        rows
    }

    fn add_label(&mut self, label: Label, text: String) -> u32 {
        self.labels.push((label, text));
        self.labels.len() as u32 - 1
    }

    fn label_lines(&mut self) {
        let profile = self.profile;
        let mut known: HashMap<(u32, Option<NameId>, u32), u32> = HashMap::new();
        for line in &profile.lines {
            let binary = profile.functions[line.function.0 as usize].binary;
            let key = match self.unit {
                Unit::Function => (line.function.0, None, 0),
                Unit::Line => (line.function.0, line.file, line.line),
                Unit::Module => (binary.unwrap_or(u32::MAX), None, 0),
            };
            let label = match known.get(&key) {
                Some(&label) => label,
                None => {
                    let name = profile.function_name(line.function);
                    let label = match self.unit {
                        Unit::Function => (Label::Function(line.function), name.to_owned()),
                        Unit::Line => (
                            Label::Line(line.function, line.file, line.line),
                            format!("{name}{}", line_text(profile, line.file, line.line)),
                        ),
                        Unit::Module if binary.is_none() => (Label::Module(None), name.to_owned()),
                        Unit::Module => (Label::Module(binary), profile.module_name(line.function)),
                    };
                    let label = self.add_label(label.0, label.1);
                    known.insert(key, label);
                    label
                }
            };
            self.of_line.push(label);
        }
        for end in 0..=u8::MAX {
            if let Some(mark) = profile.truncation_function(end) {
                let label = self.add_label(Label::Mark(mark), profile.function_name(mark).to_owned());
                self.marks.insert(end, label);
            }
        }
    }

    /// The heading of each thread, by its index in the profile.
    fn label_headings(&mut self, heading: Heading) -> Vec<Option<u32>> {
        let profile = self.profile;
        let names: Vec<String> = profile.processes.iter().map(|process| process.name()).collect();
        let buckets = profile.buckets.iter().filter(|bucket| bucket.event == profile.main);
        let mut hit: Vec<u32> =
            buckets.map(|bucket| profile.threads[bucket.thread as usize].process).collect();
        hit.sort_unstable();
        hit.dedup();
        let several = hit.iter().any(|&process| names[process as usize] != names[hit[0] as usize]);
        let mut of_thread = vec![None; profile.threads.len()];
        if heading == Heading::None || heading == Heading::ProgramsIfSeveral && !several {
            return of_thread;
        }
        self.headed = true;
        if heading == Heading::Threads {
            for (index, thread) in profile.threads.iter().enumerate() {
                let text = format!("{} {}", named(&thread.name, &names[thread.process as usize]), thread.tid);
                of_thread[index] = Some(self.add_label(Label::Thread(index as u32), text));
            }
            return of_thread;
        }
        let mut groups: BTreeMap<(&str, u32), Vec<u32>> = BTreeMap::new();
        for &process in &hit {
            let pid = profile.processes[process as usize].info.pid;
            let key = (names[process as usize].as_str(), if heading == Heading::Processes { pid } else { 0 });
            groups.entry(key).or_default().push(process);
        }
        let mut of_process = vec![None; names.len()];
        for ((name, _), processes) in groups {
            let label = Some(self.labels.len() as u32);
            processes.iter().for_each(|&process| of_process[process as usize] = label);
            self.add_label(Label::Processes(processes), name.to_owned());
        }
        for (index, thread) in profile.threads.iter().enumerate() {
            of_thread[index] = of_process[thread.process as usize];
        }
        of_thread
    }

    /// Values that read the same are the same.
    fn label_values(&mut self) -> Headings {
        const WITHOUT: &str = "(without the field)";
        self.headed = true;
        let profile = self.profile;
        let mut labels: HashMap<String, u32> = HashMap::new();
        let mut of_value = HashMap::new();
        for bucket in &profile.buckets {
            of_value.entry(bucket.fields).or_insert_with(|| {
                let text = match profile.tracepoints.carried(bucket.fields) {
                    None => WITHOUT.to_owned(),
                    Some(Carried { event, fields }) => {
                        fields.first().map_or_else(|| event.clone(), |(_, value)| value.to_string())
                    }
                };
                *labels.entry(text).or_insert_with_key(|text| self.add_label(Label::Value, text.clone()))
            });
        }
        Headings::OfValues(of_value)
    }

    /// The headings and what weighs under each, the heaviest first.
    pub fn by_heading(&self) -> Vec<(u32, u64)> {
        let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
        for chosen in &self.chosen {
            if let Some(heading) = chosen.heading {
                *sums.entry(heading).or_default() += chosen.weight;
            }
        }
        let mut rows: Vec<_> = sums.into_iter().collect();
        rows.sort_by_key(|&(heading, weight)| (std::cmp::Reverse(weight), heading));
        rows
    }

    fn choose(&mut self, headings: &Headings, matcher: &Matcher) {
        let profile = self.profile;
        let skips: Vec<Option<u32>> =
            profile.stacks.iter().map(|stack| matcher.stack(profile, stack)).collect();
        for bucket in profile.buckets.iter().filter(|bucket| bucket.event == profile.main) {
            let thread = bucket.thread as usize;
            if skips[bucket.stack as usize].is_none() || !matcher.threads[thread] {
                continue;
            }
            let (heading, stack, weight) = (headings.of(bucket), bucket.stack, bucket.weight);
            let skip = skips[stack as usize].unwrap_or(0);
            self.chosen.push(Chosen { heading, stack, skip, weight });
            let row = self.threads.entry(bucket.thread).or_default();
            (row.0, row.1) = (row.0 + bucket.samples, row.1 + bucket.weight);
            self.weight += bucket.weight;
            self.squares += bucket.squares;
        }
        // What several threads have in common is one.
        let key = |chosen: &Chosen| (chosen.heading, chosen.stack);
        self.chosen.sort_unstable_by_key(key);
        self.chosen.dedup_by(|next, kept| {
            let same = key(next) == key(kept);
            kept.weight += if same { next.weight } else { 0 };
            same
        });
    }
}

impl Stacks for Selection<'_> {
    fn labels(&self) -> usize {
        self.labels.len()
    }

    fn text(&self, label: u32) -> &str {
        &self.labels[label as usize].1
    }

    fn each(&self, each: &mut dyn FnMut(&[Step], u64)) {
        let profile = self.profile;
        let mut steps: Vec<Step> = Vec::new();
        let mut trail = Trail::default();
        // Steps and lines after each frame of the trail.
        let mut after: Vec<(usize, u32)> = Vec::new();
        let mut last = None;
        for chosen in &self.chosen {
            let stack = &profile.stacks[chosen.stack as usize];
            let before = (chosen.heading, stack.end, chosen.skip);
            if last != Some(before) {
                last = Some(before);
                trail = Trail::default();
                steps.clear();
                after.clear();
                steps.extend(chosen.heading.map(Step::certain));
                let mark = self.marks.get(&stack.end).filter(|_| chosen.skip == 0);
                steps.extend(mark.map(|&mark| Step::certain(mark)));
                after.push((steps.len(), 0));
            }
            let (shared, frames) = profile.follow(stack, &mut trail);
            after.truncate(1 + shared);
            let (len, mut number) = after[shared];
            steps.truncate(len);
            for frame in frames {
                for line in profile.locations[frame.location as usize].lines.clone().rev() {
                    number += 1;
                    let label = self.of_line[line as usize];
                    let repeated = || steps.last().is_some_and(|last| last.label == label);
                    if number > chosen.skip && !(self.unit == Unit::Module && repeated()) {
                        steps.push(Step { label, found_by: found_by(frame) });
                    }
                }
                after.push((steps.len(), number));
            }
            each(&steps, chosen.weight);
        }
    }
}

/// Filters applied to the names in a profile.
struct Matcher {
    /// Whether each thread is chosen.
    threads: Vec<bool>,
    /// Whether each function matches; none if nothing is asked for.
    symbols: Option<Vec<bool>>,
    modules: Option<Vec<bool>>,
    roots: Option<Vec<bool>>,
}

impl Matcher {
    fn new(profile: &Profile, filters: &Filters) -> Self {
        let name_or_id = |regex: &Option<Regex>, name: &str, id: u32| {
            regex.as_ref().is_none_or(|regex| regex.is_match(name) || is_number(regex, id))
        };
        let threads = profile.threads.iter().map(|thread| {
            let process = &profile.processes[thread.process as usize];
            let name = process.name();
            name_or_id(&filters.thread, named(&thread.name, &name), thread.tid)
                && name_or_id(&filters.process, &name, process.info.pid)
        });
        let functions = |regex: &Option<Regex>, text: &dyn Fn(FunctionId) -> String| {
            let all = (0..profile.functions.len() as u32).map(FunctionId);
            regex.as_ref().map(|regex| all.map(|function| regex.is_match(&text(function))).collect())
        };
        let name = |function| profile.function_name(function).to_owned();
        Matcher {
            threads: threads.collect(),
            symbols: functions(&filters.symbol, &name),
            modules: functions(&filters.module, &|function| profile.module_name(function)),
            roots: functions(&filters.root, &name),
        }
    }

    /// Elements to skip from the root of a chosen stack; none if it is not chosen.
    fn stack(&self, profile: &Profile, stack: &Stack) -> Option<u32> {
        if self.roots.is_none() && self.symbols.is_none() && self.modules.is_none() {
            return Some(0);
        }
        let frames = profile.frames_from_root(stack);
        let functions = || {
            let lines = frames.iter().flat_map(|frame| profile.lines_of(frame.location).iter().rev());
            lines.map(|line| line.function.0 as usize)
        };
        let passes = |wanted: &Option<Vec<bool>>| {
            wanted.as_ref().is_none_or(|wanted| functions().any(|function| wanted[function]))
        };
        let skip = match &self.roots {
            None => 0,
            Some(wanted) => functions().position(|function| wanted[function])? as u32,
        };
        (passes(&self.symbols) && passes(&self.modules)).then_some(skip)
    }
}

/// True if a pattern is exactly this id: `--thread 12` does not match thread 4123.
fn is_number(regex: &Regex, id: u32) -> bool {
    regex.as_str().trim_start_matches('^').trim_end_matches('$') == id.to_string()
}

/// The name of a thread, or that of its process if it has none.
pub fn named<'a>(thread: &'a str, process: &'a str) -> &'a str {
    if thread.is_empty() { process } else { thread }
}

fn found_by(frame: StackFrame) -> FoundBy {
    Frame::from_bits(u64::from(frame.found_by) << 62).found_by()
}

/// ` file.rs:12`, as far as it is known.
fn line_text(profile: &Profile, file: Option<NameId>, line: u32) -> String {
    match file {
        Some(file) => format!(" {}:{line}", base_name(std::path::Path::new(profile.names.get(file)))),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_tree::{CallTree, Direction, weights};
    use crate::profile::fixture;

    fn stacks(selection: &Selection<'_>) -> Vec<(String, u64)> {
        let mut stacks = Vec::new();
        selection.each(&mut |steps, weight| {
            let names: Vec<&str> = steps.iter().map(|step| selection.text(step.label)).collect();
            stacks.push((names.join(";"), weight));
        });
        stacks.sort();
        stacks
    }

    fn filters(flag: &str, pattern: &str) -> Filters {
        let regex = Some(Regex::new(pattern).unwrap());
        let mut filters = Filters::default();
        match flag {
            "thread" => filters.thread = regex,
            "process" => filters.process = regex,
            "module" => filters.module = regex,
            "symbol" => filters.symbol = regex,
            _ => filters.root = regex,
        }
        filters
    }

    #[test]
    fn weights_of_functions_and_trees_add_up() {
        let profile = fixture::loaded("selection-weights");
        for heading in [Heading::None, Heading::Programs, Heading::Processes, Heading::Threads] {
            let selection = Selection::new(&profile, Unit::Function, heading, &Filters::default());
            let weights = weights(&selection);
            let of = |name: &str| {
                let found = (0..weights.len()).filter(|&label| selection.text(label as u32) == name);
                found.fold((0, 0), |sum, label| (sum.0 + weights[label].own, sum.1 + weights[label].total))
            };
            assert_eq!(of("app::parse"), (7, 12));
            assert_eq!(of("main"), (0, 17));
            assert_eq!(of("worker;loop"), (1, 4), "a recursive function counts once per stack");
            assert_eq!(weights.iter().map(|weight| weight.own).sum::<u64>(), profile.totals.weight);
            for direction in [Direction::Callees, Direction::Callers] {
                let tree = CallTree::new(&selection, direction, selection.headings());
                assert_eq!(tree.nodes[0].total, profile.totals.weight);
            }
        }
    }

    #[test]
    fn filters_choose_whole_stacks_and_root_cuts_them() {
        let profile = fixture::loaded("selection-filters");
        let chosen = |flag, pattern| {
            stacks(&Selection::new(&profile, Unit::Function, Heading::None, &filters(flag, pattern)))
        };
        let weight = |list: &[(String, u64)]| list.iter().map(|(_, weight)| weight).sum::<u64>();
        assert_eq!(weight(&chosen("thread", "^work")), 4);
        assert_eq!(weight(&chosen("thread", "101")), 4);
        assert_eq!(weight(&chosen("thread", "10")), 0, "an id matches as a whole");
        assert_eq!(weight(&chosen("process", "200")), 2);
        assert_eq!(weight(&chosen("module", r"plugin|lib(old|new)\.so")), 6);
        assert_eq!(weight(&chosen("symbol", "foo")), 2);
        assert_eq!(weight(&chosen("symbol", "nothing")), 0);
        let expected = [("app::parse", 7), ("app::parse;[unknown]", 3), ("app::parse;space::foo(int)", 2)];
        assert_eq!(chosen("root", "parse$"), expected.map(|(stack, weight)| (stack.to_owned(), weight)));
    }

    #[test]
    fn modules_follow_each_other() {
        let profile = fixture::loaded("selection-modules");
        let selection = Selection::new(&profile, Unit::Module, Heading::Threads, &Filters::default());
        let stacks = stacks(&selection);
        assert!(stacks.contains(&("app 100;app;libnew.so".into(), 4)), "{stacks:?}");
        assert!(stacks.contains(&("app 100;app".into(), 5)), "{stacks:?}");
        assert!(stacks.contains(&("worker 101;[truncated: no-cfi];app;[unknown]".into(), 3)), "{stacks:?}");
        assert_eq!(selection.threads()[0], (0, 6, 14));
    }
}
