//! The report as one JSON object.
//!
//! The tree is a flat list of nodes with the indexes of their parents: nested objects would exceed the depth limit of most JSON
//! parsers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, BufWriter, Write};

use selfwind_profile::call_tree::{CallTree, Direction, Node, Stacks};
use selfwind_profile::measure::Weighed;
use selfwind_profile::profile::Profile;
use selfwind_profile::selection::{Growth, Label, Selection};
use serde::{Serialize, Serializer};

use super::options::{ReportOptions, Rows, View};
use super::table::{self, Row};
use super::waits::{self, PairRow};

#[derive(Serialize)]
struct Report<'a> {
    command: &'a [String],
    samples: u64,
    weight: u64,
    /// The event shown.
    event: &'a str,
    /// All events: what their weights count, and their totals.
    weights: &'a [Weighed],
    /// The part of `weight` that passes the filters.
    selected: u64,
    filters: String,
    lost: u64,
    truncated: u64,
    processes: u64,
    duration_ns: u64,
    frequency: u32,
    frames: Frames,
    binaries: Binaries,
    functions: Vec<FunctionRow<'a>>,
    /// With `--by`: the values and their weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<Vec<ValueRow<'a>>>,
    threads: u64,
    by_thread: Vec<ThreadRow<'a>>,
    tree: Tree<'a>,
    /// Waits for locks, and who ended them.
    waits: Vec<PairRow<'a>>,
    notes: &'a [String],
}

/// Number of frames, each counted once per sample, and how many were not found through call frame information.
#[derive(Serialize)]
struct Frames {
    total: u64,
    frame_pointer: u64,
    guess: u64,
}

/// Number of distinct binaries with sampled code, over all processes, and how many of them had to be read for names: each once,
/// except those whose names were stored or cached.
#[derive(Serialize)]
struct Binaries {
    hit: usize,
    read: usize,
}

impl Binaries {
    fn of(profile: &Profile) -> Self {
        let hit = profile.binaries.iter().filter(|binary| binary.origin.is_some());
        Binaries { hit: hit.clone().count(), read: hit.filter(|binary| binary.read).count() }
    }
}

/// What a row or node stands for: a function, with its line if grouped by line, or a module.
#[derive(Serialize, Default)]
struct Element<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
}

#[derive(Serialize)]
struct FunctionRow<'a> {
    #[serde(flatten)]
    element: Element<'a>,
    #[serde(rename = "self")]
    own: u64,
    total: u64,
    guessed: u64,
}

#[derive(Serialize)]
struct ThreadRow<'a> {
    pid: u32,
    tid: u32,
    process: String,
    thread: &'a str,
    samples: u64,
    weight: u64,
}

#[derive(Serialize)]
struct ValueRow<'a> {
    value: &'a str,
    weight: u64,
}

#[derive(Serialize)]
struct NodeRow<'a> {
    /// Index of the parent node in the list; none for roots.
    parent: Option<u32>,
    #[serde(flatten)]
    element: Element<'a>,
    #[serde(rename = "self")]
    own: u64,
    total: u64,
    frame_pointer: u64,
    guessed: u64,
}

/// The nodes of a tree as they are serialized.
struct Tree<'a> {
    selection: &'a Selection<'a>,
    tree: &'a CallTree,
    /// Indexes of the nodes to write, ascending; none: all.
    heaviest: Option<Vec<u32>>,
}

impl Serialize for Tree<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = |index: u32, parent| node_row(self.selection, self.tree.node(index), parent);
        let above = |index: u32| self.tree.node(index).parent;
        match &self.heaviest {
            None => {
                let all = 1..self.tree.nodes.len() as u32;
                serializer.collect_seq(all.map(|index| row(index, above(index).checked_sub(1))))
            }
            Some(indexes) => serializer.collect_seq(indexes.iter().map(|&index| {
                let parent = indexes.binary_search(&above(index)).ok();
                row(index, parent.map(|parent| parent as u32))
            })),
        }
    }
}

/// The indexes of the heaviest nodes, each with its parent, without the root of everything.
fn heaviest(tree: &CallTree, limit: usize) -> Vec<u32> {
    let mut heap = BinaryHeap::from([(0, Reverse(0))]);
    let mut indexes = Vec::new();
    while indexes.len() <= limit
        && let Some((_, Reverse(index))) = heap.pop()
    {
        indexes.push(index);
        heap.extend(tree.children(index).iter().map(|&child| (tree.node(child).total, Reverse(child))));
    }
    indexes.sort_unstable();
    indexes.split_off(1)
}

/// Maximum number of rows in each list; none: all.
fn limit(options: &ReportOptions) -> Option<usize> {
    options.limit.filter(|&limit| limit > 0)
}

/// Writes the report. [`ReportOptions::limit`] applies to the functions and to the nodes of the tree separately.
pub(super) fn write(
    selection: &Selection<'_>,
    options: &ReportOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let profile = selection.profile();
    let direction = if options.view == View::NoChildren { Direction::Callers } else { Direction::Callees };
    let tree = selection.tree(direction, limit(options).map_or(Growth::Whole, Growth::Heaviest));
    let stats = &profile.stats;
    let report = Report {
        command: &profile.session.command,
        samples: profile.totals.samples,
        weight: profile.totals.weight,
        event: &profile.measure(profile.main).name,
        weights: &stats.detail.weights,
        selected: selection.weight(),
        filters: options.filters.flags(),
        lost: stats.lost,
        truncated: profile.totals.truncated,
        processes: stats.processes,
        duration_ns: stats.detail.duration_ns,
        frequency: profile.session.frequency,
        binaries: Binaries::of(profile),
        frames: Frames {
            total: profile.totals.frames,
            frame_pointer: profile.totals.frame_pointer,
            guess: profile.totals.guessed,
        },
        functions: functions(selection, options),
        by: options.by.is_some().then(|| values(selection)),
        threads: stats.threads,
        by_thread: threads(selection),
        tree: Tree { selection, heaviest: limit(options).map(|limit| heaviest(&tree, limit)), tree: &tree },
        waits: waits::rows(profile),
        notes: &profile.notes,
    };
    let mut out = BufWriter::new(out);
    serde_json::to_writer_pretty(&mut out, &report)?;
    out.write_all(b"\n")?;
    out.flush()
}

fn functions<'a>(selection: &'a Selection<'_>, options: &ReportOptions) -> Vec<FunctionRow<'a>> {
    let options = ReportOptions { rows: Rows::Elements, ..options.clone() };
    let row = |row: Row| {
        let element = row.label.map(|label| element(selection, label)).unwrap_or_default();
        FunctionRow { element, own: row.own, total: row.total, guessed: row.guessed }
    };
    table::rows(selection, &options)
        .into_iter()
        .take(limit(&options).unwrap_or(usize::MAX))
        .map(row)
        .collect()
}

fn threads<'a>(selection: &Selection<'a>) -> Vec<ThreadRow<'a>> {
    let profile = selection.profile();
    let row = |(index, samples, weight): (u32, u64, u64)| {
        let thread = &profile.threads[index as usize];
        let process = profile.process_of(index);
        ThreadRow {
            pid: process.info.pid,
            tid: thread.tid,
            process: process.name(),
            thread: &thread.name,
            samples,
            weight,
        }
    };
    selection.threads().into_iter().map(row).collect()
}

fn values<'a>(selection: &'a Selection<'_>) -> Vec<ValueRow<'a>> {
    let row = |(label, weight)| ValueRow { value: selection.text(label), weight };
    selection.by_heading().into_iter().map(row).collect()
}

fn element<'a>(selection: &'a Selection<'_>, label: u32) -> Element<'a> {
    let profile = selection.profile();
    let text = selection.text(label);
    match *selection.label(label) {
        Label::Function(function) | Label::Mark(function) => Element {
            function: Some(text),
            module: Some(profile.module_name(function)),
            ..Element::default()
        },
        Label::Line(function, file, line) => Element {
            function: Some(profile.function_name(function)),
            module: Some(profile.module_name(function)),
            file: file.map(|file| profile.names.get(file)),
            line: (line > 0).then_some(line),
            ..Element::default()
        },
        Label::Module(_) => Element { module: Some(text.to_owned()), ..Element::default() },
        Label::Processes(_) => Element { process: Some(text), ..Element::default() },
        Label::Thread(_) => Element { thread: Some(text), ..Element::default() },
        Label::Value => Element { value: Some(text), ..Element::default() },
    }
}

fn node_row<'a>(selection: &'a Selection<'_>, node: &Node, parent: Option<u32>) -> NodeRow<'a> {
    NodeRow {
        parent,
        element: element(selection, node.label),
        own: node.own,
        total: node.total,
        frame_pointer: node.frame_pointer,
        guessed: node.guessed,
    }
}
