//! speedscope's own JSON format (<https://www.speedscope.app/file-format-schema.json>): one sampled
//! profile per thread and event, all with the same list of frames.
//!
//! Weights have the unit `none`, as they are timer periods or events; off-CPU time is in microseconds.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};

use serde::{Serialize, Serializer};

use super::description::{Description, Writer};
use super::grouping::Grouping;
use super::sampled_thread::{SampledThread, heaviest, mark, sampled_threads};
use super::title::title;
use crate::measure::{Measure, Unit};
use crate::names::NameId;
use crate::profile::{FunctionId, Profile};

/// The format.
pub(super) const DESCRIPTION: Description =
    Description::text("speedscope", &["speedscope.json"], Writer::Named(write));

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    name: String,
    active_profile_index: usize,
    shared: Shared<'a>,
    profiles: Vec<Sampled<'a>>,
}

#[derive(Serialize)]
struct Shared<'a> {
    frames: &'a [Frame<'a>],
}

/// A function in a source file; one of the kernel in `[kernel]`. No line: speedscope would take each line for a function of its own.
#[derive(Serialize)]
struct Frame<'a> {
    name: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<Cow<'a, str>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Sampled<'a> {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: Stacks<'a>,
    weights: Vec<u64>,
}

/// The stacks of a thread, root first, produced while they are written: together they are larger than the profile.
struct Stacks<'a> {
    frames: &'a Frames<'a>,
    thread: Option<SampledThread<'a>>,
}

impl Serialize for Stacks<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let buckets = self.thread.iter().flat_map(SampledThread::buckets);
        serializer.collect_seq(buckets.map(|bucket| self.frames.of_stack(bucket.stack)))
    }
}

/// The list of frames, and the frame of each source line.
struct Frames<'a> {
    profile: &'a Profile,
    list: Vec<Frame<'a>>,
    /// By index of the line in the profile.
    of_line: Vec<u32>,
    of_mark: HashMap<String, u32>,
}

impl<'a> Frames<'a> {
    fn new(profile: &'a Profile) -> Self {
        let mut frames = Frames { profile, list: Vec::new(), of_line: Vec::new(), of_mark: HashMap::new() };
        let mut known: HashMap<(FunctionId, Option<NameId>), u32> = HashMap::new();
        for line in &profile.lines {
            let number = *known.entry((line.function, line.file)).or_insert_with(|| {
                let name = profile.function_name(line.function).into();
                let file = match line.file {
                    Some(file) => Some(profile.names.get(file).into()),
                    None => {
                        profile.is_kernel(line.function).then(|| profile.module_name(line.function).into())
                    }
                };
                frames.list.push(Frame { name, file });
                frames.list.len() as u32 - 1
            });
            frames.of_line.push(number);
        }
        for mark in profile.stacks.iter().filter_map(|stack| mark(profile, stack)) {
            if !frames.of_mark.contains_key(&mark) {
                frames.list.push(Frame { name: mark.clone().into(), file: None });
                frames.of_mark.insert(mark, frames.list.len() as u32 - 1);
            }
        }
        frames
    }

    /// The frames of a stack, root first.
    fn of_stack(&self, stack: u32) -> Vec<u32> {
        let stack = &self.profile.stacks[stack as usize];
        let mark = mark(self.profile, stack).map(|mark| self.of_mark[&mark]);
        let frames = self.profile.frames_from_root(stack).into_iter();
        let lines =
            frames.flat_map(|frame| self.profile.locations[frame.location as usize].lines.clone().rev());
        mark.into_iter().chain(lines.map(|line| self.of_line[line as usize])).collect()
    }
}

/// Writes a profile for speedscope.
fn write(profile: &Profile, _: Grouping, out: &mut dyn Write) -> io::Result<()> {
    let frames = Frames::new(profile);
    let threads = sampled_threads(profile);
    let mut profiles: Vec<_> =
        threads.iter().map(|&thread| sampled(&frames, Some(thread), thread.label())).collect();
    if profiles.is_empty() {
        // speedscope cannot open a document without a profile.
        profiles.push(sampled(&frames, None, "no samples".into()));
    }
    let document = Document {
        schema: SCHEMA,
        exporter: concat!("selfwind ", env!("CARGO_PKG_VERSION")),
        name: title(profile),
        active_profile_index: heaviest(&threads),
        shared: Shared { frames: &frames.list },
        profiles,
    };
    serde_json::to_writer(&mut *out, &document)?;
    out.write_all(b"\n")
}

/// speedscope's name of a weight's unit.
fn unit(measure: &Measure) -> &'static str {
    match measure.unit {
        Unit::Microsecond => "microseconds",
        Unit::Nanosecond => "nanoseconds",
        Unit::Byte => "bytes",
        _ => "none",
    }
}

fn sampled<'a>(frames: &'a Frames<'a>, thread: Option<SampledThread<'a>>, name: String) -> Sampled<'a> {
    Sampled {
        r#type: "sampled",
        name,
        unit: thread.map_or("none", |thread| unit(thread.measure())),
        start_value: 0,
        end_value: thread.map_or(0, |thread| thread.weight()),
        samples: Stacks { frames, thread },
        weights: thread.iter().flat_map(SampledThread::buckets).map(|bucket| bucket.weight).collect(),
    }
}
