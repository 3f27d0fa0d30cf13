//! Folded stacks: `root;...;leaf COUNT`, one line per distinct stack, sorted.
//!
//! Read by flamegraph.pl, inferno, speedscope and others.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Write};

use super::description::{Description, Writer};
use super::grouping::Grouping;
use crate::call_tree::{CallTree, Direction, Stacks, Step};
use crate::collapsed_name::collapsed_name;
use crate::file_name::base_name;
use crate::interpreted::mark_of;
use crate::names::{NameId, Names};
use crate::profile::{Bucket, FunctionId, Profile, SourceLine, Trail};

/// The format.
pub(super) const DESCRIPTION: Description =
    Description::text("folded", &["folded", "collapsed"], Writer::Named(write));

/// Maximum length of a name; longer ones lose their parameters and type arguments.
const SHORT: usize = 40;

/// Where the code of an element comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Program,
    Library,
    Inlined,
    Generated,
    /// Interpreted.
    Interpreted,
    Kernel,
    /// Not a function: a reason, a process, or an address without name.
    Mark,
}

impl Kind {
    /// The annotation at the end of an element, which flame graph tools recognise and do not show.
    fn annotation(self) -> &'static str {
        match self {
            // Interpreted code has the annotation of its language.
            Kind::Program | Kind::Mark | Kind::Interpreted => "",
            Kind::Library => "_[w]",
            Kind::Inlined => "_[i]",
            Kind::Generated => "_[j]",
            Kind::Kernel => "_[k]",
        }
    }

    /// The kind of an annotated element.
    pub(super) fn of(element: &str) -> Kind {
        if mark_of(element).is_some() {
            return Kind::Interpreted;
        }
        let kinds = [Kind::Library, Kind::Inlined, Kind::Generated, Kind::Kernel];
        let annotated = kinds.into_iter().find(|kind| element.ends_with(kind.annotation()));
        annotated.unwrap_or(if element.starts_with('[') { Kind::Mark } else { Kind::Program })
    }
}

/// How functions are written.
pub(super) struct Naming {
    /// By function; `None` for full names, of which only the kernel's are annotated.
    short: Option<Vec<String>>,
    /// The full names of the shortened ones.
    pub(super) whole: BTreeMap<String, String>,
}

impl Naming {
    fn whole() -> Self {
        Naming { short: None, whole: BTreeMap::new() }
    }

    /// Short names, all annotated with their kind.
    pub(super) fn short(profile: &Profile) -> Self {
        let functions = (0..profile.functions.len() as u32).map(FunctionId);
        let names: Vec<&str> = functions.map(|function| profile.function_name(function)).collect();
        // Instances of a template are different functions, so they are numbered.
        let mut meant: HashMap<String, BTreeSet<&str>> = HashMap::new();
        for name in &names {
            meant.entry(collapsed_name(name, SHORT).into_owned()).or_default().insert(name);
        }
        let mut whole = BTreeMap::new();
        let short = names.iter().map(|&name| {
            let mut short = collapsed_name(name, SHORT).into_owned();
            if short == name {
                return short;
            }
            let instances = meant.get(&short).into_iter().flatten();
            if let Some(number) = instances.skip(1).position(|&instance| instance == name) {
                short.push_str(&format!(" #{}", number + 2));
            }
            let mut shown = String::new();
            push_element(&mut shown, &short);
            whole.insert(shown, name.to_owned());
            short
        });
        Naming { short: Some(short.collect()), whole }
    }

    /// The element of a function, and of its inlined copies.
    fn elements(&self, profile: &Profile, programs: &BTreeSet<String>, function: FunctionId) -> [String; 2] {
        let mut text = String::new();
        let Some(short) = &self.short else {
            push_element(&mut text, profile.function_name(function));
            if profile.is_kernel(function) {
                text.push_str("_[k]");
            } else {
                text.push_str(profile.interpreted_mark(function).unwrap_or_default());
            }
            return [text.clone(), text];
        };
        push_element(&mut text, &short[function.0 as usize]);
        let binary = profile.functions[function.0 as usize].binary;
        let path = binary.map(|binary| profile.binaries[binary as usize].path.as_path());
        let mark = profile.interpreted_mark(function);
        let kind = match path {
            _ if profile.is_kernel(function) => {
                text.push_str(" [kernel]");
                Kind::Kernel
            }
            _ if mark.is_some() => Kind::Interpreted,
            _ if text.starts_with('[') => Kind::Mark,
            None => Kind::Generated,
            Some(path) if programs.contains(&base_name(path)) => Kind::Program,
            Some(_) => Kind::Library,
        };
        text.push_str(mark.unwrap_or_default());
        let inlined = if matches!(kind, Kind::Program | Kind::Library) { Kind::Inlined } else { kind };
        [kind, inlined].map(|kind| format!("{text}{}", kind.annotation()))
    }
}

/// Stacks as sequences of element texts, as in their lines.
struct Texts<'a> {
    profile: &'a Profile,
    names: Names,
    /// Elements by function; those of inlined copies follow.
    of_function: Vec<[u32; 2]>,
    no_frames: u32,
    /// Group, stack and weight.
    rows: Vec<(Option<u32>, u32, u64)>,
}

impl<'a> Texts<'a> {
    fn new(profile: &'a Profile, grouping: Grouping, naming: &Naming) -> Self {
        let mut names = Names::default();
        let programs = profile.processes.iter().map(|process| base_name(&process.info.exe)).collect();
        let of_function = (0..profile.functions.len() as u32)
            .map(FunctionId)
            .map(|function| naming.elements(profile, &programs, function).map(|text| names.intern(&text).0));
        let of_function = of_function.collect();
        let threads = 0..profile.threads.len() as u32;
        let of_thread: Vec<Option<u32>> = threads
            .map(|thread| group(profile, grouping, thread).map(|text| names.intern(&text).0))
            .collect();
        let row = |bucket: &Bucket| (of_thread[bucket.thread as usize], bucket.stack, bucket.weight);
        let of_main = profile.buckets.iter().filter(|bucket| bucket.event == profile.main);
        let mut rows: Vec<_> = of_main.map(row).collect();
        rows.sort_unstable_by_key(|&(group, stack, _)| (group, stack));
        rows.dedup_by(|next, kept| {
            let same = (next.0, next.1) == (kept.0, kept.1);
            kept.2 += if same { next.2 } else { 0 };
            same
        });
        // A line needs a stack; one without frames still counts.
        let no_frames = names.intern("[no frames]").0;
        Texts { profile, names, of_function, no_frames, rows }
    }
}

impl Stacks for Texts<'_> {
    fn labels(&self) -> usize {
        self.names.len()
    }

    fn text(&self, label: u32) -> &str {
        self.names.get(NameId(label))
    }

    fn each(&self, each: &mut dyn FnMut(&[Step], u64)) {
        let profile = self.profile;
        let mark = |function: FunctionId| Step::certain(self.of_function[function.0 as usize][0]);
        let function = |line: &SourceLine| {
            Step::certain(self.of_function[line.function.0 as usize][usize::from(line.inlined)])
        };
        let mut steps = Vec::new();
        let mut trail = Trail::default();
        // Number of steps after each frame of the trail.
        let mut after: Vec<usize> = Vec::new();
        let mut last = None;
        for &(group, stack, weight) in &self.rows {
            let stack = &profile.stacks[stack as usize];
            if last != Some((group, stack.end)) {
                last = Some((group, stack.end));
                trail = Trail::default();
                steps.clear();
                after.clear();
                steps.extend(group.map(Step::certain));
                steps.extend(profile.truncation_function(stack.end).map(mark));
                after.push(steps.len());
            }
            let (shared, frames) = profile.follow(stack, &mut trail);
            after.truncate(1 + shared);
            steps.truncate(after[shared]);
            for frame in frames {
                let lines = profile.lines_of(frame.location).iter().rev();
                steps.extend(lines.map(function));
                after.push(steps.len());
            }
            match *steps {
                [] => each(&[Step::certain(self.no_frames)], weight),
                _ => each(&steps, weight),
            }
        }
    }
}

/// Lines yet to be written: the line that ends in a node, or those that end below it.
#[derive(Clone, Copy)]
enum Lines {
    Own(u32),
    Below(u32),
}

/// Calls `line` for every distinct stack with its weight, in the byte order of the lines. Weights below `least` are added
/// to the caller.
pub(super) fn fold(
    profile: &Profile,
    grouping: Grouping,
    least: u64,
    naming: &Naming,
    line: &mut dyn FnMut(&str, u64) -> io::Result<()>,
) -> io::Result<()> {
    let texts = Texts::new(profile, grouping, naming);
    let tree = CallTree::new(&texts, Direction::Callees, 0);
    let least = least.max(1);
    let shown = |node: u32| tree.children(node).iter().copied().filter(|&c| tree.node(c).total >= least);
    let own =
        |node: u32| tree.node(node).total - shown(node).map(|child| tree.node(child).total).sum::<u64>();
    // Compare the bytes of the lines, in which a longer stack continues with a `;`.
    let bytes = |lines: &Lines| {
        let (node, more) = match *lines {
            Lines::Own(node) => (node, None),
            Lines::Below(node) => (node, Some(&b';')),
        };
        texts.text(tree.node(node).label).as_bytes().iter().chain(more)
    };
    let order = |a: &Lines, b: &Lines| -> Ordering { bytes(a).cmp(bytes(b)) };
    let mut text = String::new();
    // A stack of lines yet to be written, with the length of the text before each item.
    let mut pending = vec![(0, Lines::Below(0))];
    while let Some((len, lines)) = pending.pop() {
        text.truncate(len);
        let (Lines::Own(node) | Lines::Below(node)) = lines;
        if node > 0 {
            text.push_str(texts.text(tree.node(node).label));
        }
        if let Lines::Own(_) = lines {
            line(&text, own(node))?;
            continue;
        }
        if node > 0 {
            text.push(';');
        }
        let mut below: Vec<Lines> = Vec::new();
        for child in shown(node) {
            if own(child) > 0 {
                below.push(Lines::Own(child));
            }
            if shown(child).next().is_some() {
                below.push(Lines::Below(child));
            }
        }
        below.sort_unstable_by(|a, b| order(b, a));
        pending.extend(below.into_iter().map(|lines| (text.len(), lines)));
    }
    Ok(())
}

/// Appends a name. Characters that would split the line or the stack are replaced.
fn push_element(text: &mut String, name: &str) {
    text.extend(name.chars().map(|c| match c {
        ';' => ':',
        c if c.is_control() => ' ',
        c => c,
    }));
}

fn group(profile: &Profile, grouping: Grouping, thread: u32) -> Option<String> {
    let process = profile.process_of(thread);
    let thread = &profile.threads[thread as usize];
    let mut text = String::new();
    match grouping {
        Grouping::None => return None,
        Grouping::Process => push_element(&mut text, &format!("{}-{}", process.name(), process.info.pid)),
        Grouping::Thread => {
            let name = if thread.name.is_empty() { process.name() } else { thread.name.clone() };
            push_element(&mut text, &format!("{name}-{}/{}", process.info.pid, thread.tid));
        }
    }
    Some(text)
}

/// Writes the folded stacks of a profile.
fn write(profile: &Profile, grouping: Grouping, out: &mut dyn Write) -> io::Result<()> {
    fold(profile, grouping, 1, &Naming::whole(), &mut |stack, weight| writeln!(out, "{stack} {weight}"))
}
