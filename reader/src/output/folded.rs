//! Folded stacks: `root;...;leaf COUNT`, one line per distinct stack, sorted.
//!
//! Read by flamegraph.pl, inferno, speedscope and others.

use std::cmp::Ordering;
use std::io::{self, Write};

use super::Grouping;
use crate::call_tree::{CallTree, Direction, Stacks, Step};
use crate::names::{NameId, Names};
use crate::profile::{Bucket, FunctionId, Profile, Trail};

/// Stacks as their lines have them, by the texts of their elements.
struct Texts<'a> {
    profile: &'a Profile,
    names: Names,
    of_function: Vec<u32>,
    no_frames: u32,
    /// Group, stack and weight.
    rows: Vec<(Option<u32>, u32, u64)>,
}

impl<'a> Texts<'a> {
    fn new(profile: &'a Profile, grouping: Grouping) -> Self {
        let mut names = Names::default();
        let mut text = String::new();
        let of_function = (0..profile.functions.len() as u32).map(FunctionId).map(|function| {
            text.clear();
            push_element(&mut text, profile.function_name(function));
            if profile.is_kernel(function) {
                text.push_str("_[k]");
            }
            names.intern(&text).0
        });
        let of_function = of_function.collect();
        let threads = 0..profile.threads.len() as u32;
        let of_thread: Vec<Option<u32>> = threads
            .map(|thread| group(profile, grouping, thread).map(|text| names.intern(&text).0))
            .collect();
        let row = |bucket: &Bucket| (of_thread[bucket.thread as usize], bucket.stack, bucket.weight);
        let mut rows: Vec<_> = profile.buckets.iter().map(row).collect();
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
        let function = |function: FunctionId| Step::certain(self.of_function[function.0 as usize]);
        let mut steps = Vec::new();
        let mut trail = Trail::default();
        // Steps after each frame of the trail.
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
                steps.extend(profile.truncation_function(stack.end).map(function));
                after.push(steps.len());
            }
            let (shared, frames) = profile.follow(stack, &mut trail);
            after.truncate(1 + shared);
            steps.truncate(after[shared]);
            for frame in frames {
                let places = profile.places_of(frame.location).iter().rev();
                steps.extend(places.map(|place| function(place.function)));
                after.push(steps.len());
            }
            match *steps {
                [] => each(&[Step::certain(self.no_frames)], weight),
                _ => each(&steps, weight),
            }
        }
    }
}

/// What is left to be told of a tree: the line that ends in a node, or the lines through it.
#[derive(Clone, Copy)]
enum Part {
    Own(u32),
    Below(u32),
}

/// Calls `line` for every distinct stack with its weight, in the order of the lines' bytes. What weighs less than
/// `least` is told as its caller's own.
pub(super) fn fold(
    profile: &Profile,
    grouping: Grouping,
    least: u64,
    line: &mut dyn FnMut(&str, u64) -> io::Result<()>,
) -> io::Result<()> {
    let texts = Texts::new(profile, grouping);
    let tree = CallTree::new(&texts, Direction::Callees, 0);
    let least = least.max(1);
    let shown = |node: u32| tree.children(node).iter().copied().filter(|&c| tree.node(c).total >= least);
    let own =
        |node: u32| tree.node(node).total - shown(node).map(|child| tree.node(child).total).sum::<u64>();
    // Bytes as they stand in the lines, where a stack that goes on has a `;`.
    let bytes = |part: &Part| {
        let (node, more) = match *part {
            Part::Own(node) => (node, None),
            Part::Below(node) => (node, Some(&b';')),
        };
        texts.text(tree.node(node).label).as_bytes().iter().chain(more)
    };
    let order = |a: &Part, b: &Part| -> Ordering { bytes(a).cmp(bytes(b)) };
    let mut text = String::new();
    // The last comes first; with the length of the text before it.
    let mut pending = vec![(0, Part::Below(0))];
    while let Some((len, part)) = pending.pop() {
        text.truncate(len);
        let (Part::Own(node) | Part::Below(node)) = part;
        if node > 0 {
            text.push_str(texts.text(tree.node(node).label));
        }
        if let Part::Own(_) = part {
            line(&text, own(node))?;
            continue;
        }
        if node > 0 {
            text.push(';');
        }
        let mut parts: Vec<Part> = Vec::new();
        for child in shown(node) {
            if own(child) > 0 {
                parts.push(Part::Own(child));
            }
            if shown(child).next().is_some() {
                parts.push(Part::Below(child));
            }
        }
        parts.sort_unstable_by(|a, b| order(b, a));
        pending.extend(parts.into_iter().map(|part| (text.len(), part)));
    }
    Ok(())
}

/// Appends a name. What would break the line or the stack apart is replaced.
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
pub(super) fn write(profile: &Profile, grouping: Grouping, out: &mut dyn Write) -> io::Result<()> {
    fold(profile, grouping, 1, &mut |stack, weight| writeln!(out, "{stack} {weight}"))
}
