//! The report as one JSON object.
//!
//! The tree is a flat list of nodes that name their parents: nested objects would be deeper than most
//! JSON readers go.

use std::io::{self, Write};

use serde::Serialize;

use super::table::{self, Row};
use super::{ReportOptions, Rows, View};
use crate::call_tree::{CallTree, Direction, Node, Stacks};
use crate::measure::Weighed;
use crate::profile::Profile;
use crate::selection::{Label, Selection};

#[derive(Serialize)]
struct Report<'a> {
    command: &'a [String],
    samples: u64,
    weight: u64,
    /// What the weight counts, by event.
    weights: &'a [Weighed],
    /// The part of `weight` that the filters leave.
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
    threads: u64,
    by_thread: Vec<ThreadRow<'a>>,
    tree: Vec<NodeRow<'a>>,
    notes: &'a [String],
}

/// Frames, each counted once per sample, and how many were not found by call frame information.
#[derive(Serialize)]
struct Frames {
    total: u64,
    frame_pointer: u64,
    guess: u64,
}

/// Distinct binaries in which code was hit, over all processes, and how many had to be read for their names:
/// each once, and not those whose names were known from before.
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

/// What a row or a node is: a function, with its line when lines are told apart; a module alone.
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
struct NodeRow<'a> {
    /// Place of the node above in the list; none for roots.
    parent: Option<u32>,
    #[serde(flatten)]
    element: Element<'a>,
    #[serde(rename = "self")]
    own: u64,
    total: u64,
    frame_pointer: u64,
    guessed: u64,
}

/// Writes the report; [`ReportOptions::limit`] limits the functions.
pub(super) fn write(
    selection: &Selection<'_>,
    options: &ReportOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let profile = selection.profile();
    let direction = if options.view == View::NoChildren { Direction::Callers } else { Direction::Callees };
    let tree = CallTree::new(selection, direction, selection.headings());
    let stats = &profile.stats;
    let report = Report {
        command: &profile.session.command,
        samples: profile.totals.samples,
        weight: profile.totals.weight,
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
        threads: stats.threads,
        by_thread: threads(selection),
        tree: tree.nodes.iter().skip(1).map(|node| node_row(selection, node)).collect(),
        notes: &profile.notes,
    };
    serde_json::to_writer_pretty(&mut *out, &report)?;
    out.write_all(b"\n")
}

fn functions<'a>(selection: &'a Selection<'_>, options: &ReportOptions) -> Vec<FunctionRow<'a>> {
    let options = ReportOptions { rows: Rows::Elements, ..options.clone() };
    let limit = options.limit.filter(|&limit| limit > 0).unwrap_or(usize::MAX);
    let row = |row: Row| {
        let element = row.label.map(|label| element(selection, label)).unwrap_or_default();
        FunctionRow { element, own: row.own, total: row.total, guessed: row.guessed }
    };
    table::rows(selection, &options).into_iter().take(limit).map(row).collect()
}

fn threads<'a>(selection: &Selection<'a>) -> Vec<ThreadRow<'a>> {
    let profile = selection.profile();
    let row = |(place, samples, weight): (u32, u64, u64)| {
        let thread = &profile.threads[place as usize];
        let process = profile.process_of(place);
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
    }
}

fn node_row<'a>(selection: &'a Selection<'_>, node: &Node) -> NodeRow<'a> {
    NodeRow {
        parent: node.parent.checked_sub(1),
        element: element(selection, node.label),
        own: node.own,
        total: node.total,
        frame_pointer: node.frame_pointer,
        guessed: node.guessed,
    }
}
