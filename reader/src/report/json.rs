//! The report as one JSON object.
//!
//! The tree is a flat list of nodes that name their parents: nested objects would be deeper than most
//! JSON readers go.

use std::io::{self, Write};

use serde::Serialize;

use super::{ReportOptions, View};
use crate::profile::Profile;
use crate::profile::tree::{CallTree, Direction, Label, function_weights};

#[derive(Serialize)]
struct Report<'a> {
    command: &'a [String],
    samples: u64,
    weight: u64,
    lost: u64,
    truncated: u64,
    threads: u64,
    processes: u64,
    duration_ns: u64,
    frequency: u32,
    frames: Frames,
    functions: Vec<FunctionRow<'a>>,
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

#[derive(Serialize)]
struct FunctionRow<'a> {
    function: &'a str,
    module: String,
    #[serde(rename = "self")]
    own: u64,
    total: u64,
}

#[derive(Serialize)]
struct NodeRow<'a> {
    /// Place of the node above in the list; none for roots.
    parent: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<&'a str>,
    #[serde(rename = "self")]
    own: u64,
    total: u64,
}

/// Writes the report; [`ReportOptions::limit`] limits the functions.
pub(super) fn write(profile: &Profile, options: &ReportOptions, out: &mut dyn Write) -> io::Result<()> {
    let direction = if options.view == View::NoChildren { Direction::Callers } else { Direction::Callees };
    let tree = CallTree::new(profile, direction, true);
    let stats = &profile.stats;
    let report = Report {
        command: &profile.session.command,
        samples: profile.totals.samples,
        weight: profile.totals.weight,
        lost: stats.lost,
        truncated: profile.totals.truncated,
        threads: stats.threads,
        processes: stats.processes,
        duration_ns: stats.detail.duration_ns,
        frequency: profile.session.frequency,
        frames: Frames {
            total: profile.totals.frames,
            frame_pointer: profile.totals.frame_pointer,
            guess: profile.totals.guessed,
        },
        functions: functions(profile, options),
        tree: nodes(profile, &tree),
        notes: &profile.notes,
    };
    serde_json::to_writer_pretty(&mut *out, &report)?;
    out.write_all(b"\n")
}

fn functions<'a>(profile: &'a Profile, options: &ReportOptions) -> Vec<FunctionRow<'a>> {
    let mut weights = function_weights(profile);
    super::text::sort(profile, options.view, &mut weights);
    let limit = options.limit.filter(|&limit| limit > 0).unwrap_or(usize::MAX);
    let rows = weights.iter().filter(|weight| weight.total > 0).take(limit);
    rows.map(|weight| FunctionRow {
        function: profile.function_name(weight.function),
        module: profile.module_name(weight.function),
        own: weight.own,
        total: weight.total,
    })
    .collect()
}

/// All nodes but the first, which holds everything.
fn nodes<'a>(profile: &'a Profile, tree: &'a CallTree) -> Vec<NodeRow<'a>> {
    let rows = tree.nodes.iter().skip(1).map(|node| {
        let text = tree.text(profile, node.label);
        let (process, function) = match node.label {
            Label::All | Label::Group(_) => (Some(text), None),
            Label::Function(_) => (None, Some(text)),
        };
        NodeRow { parent: node.parent.checked_sub(1), process, function, own: node.own, total: node.total }
    });
    rows.collect()
}
