//! JSON lines: one object per thread, event, event fields and distinct stack, with everything known about each frame.

use std::fmt;
use std::io::{self, Write};

use serde::Serialize;

use super::description::{Description, Writer};
use super::grouping::Grouping;
use crate::file_name::base_name;
use crate::profile::{Bucket, Profile, Stack, found_by_name};
use crate::profile_file::end_name;
use crate::symbolize::hex;
use crate::tracepoint::FieldObject;

/// The format.
pub(super) const DESCRIPTION: Description =
    Description::text("jsonl", &["jsonl", "ndjson"], Writer::Detailed(write));

/// All samples of a thread and event with the same stack.
#[derive(Serialize)]
struct Line<'a> {
    process: String,
    pid: u32,
    tid: u32,
    thread: &'a str,
    /// The event and the unit of weight.
    event: &'a str,
    unit: &'static str,
    /// The fields of the events, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    fields: Option<FieldObject<'a>>,
    samples: u64,
    weight: u64,
    /// Why the walk ended; `root` for a complete stack.
    end: &'static str,
    /// Leaf first.
    frames: Vec<FrameObject<'a>>,
}

/// A function in a stack. Inlined functions come before the one they are inlined into, with its address.
#[derive(Serialize)]
pub struct FrameObject<'a> {
    function: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    inlined: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    build_id: Option<String>,
    /// The address in the module's file, or else in the process.
    address: String,
    found_by: &'static str,
}

/// As a line of text: the function, then its location.
impl fmt::Display for FrameObject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.function)?;
        match &self.module {
            Some(module) => write!(f, "  {module}")?,
            None => write!(f, "  {}", self.address)?,
        }
        if let Some(file) = self.file {
            write!(f, "  {file}")?;
            self.line.map_or(Ok(()), |line| write!(f, ":{line}"))?;
        }
        if self.inlined { f.write_str("  (inlined)") } else { Ok(()) }
    }
}

/// Writes a profile as JSON lines.
fn write(profile: &Profile, _: Grouping, out: &mut dyn Write) -> io::Result<()> {
    for bucket in &profile.buckets {
        serde_json::to_writer(&mut *out, &line(profile, bucket))?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// The functions of a stack, leaf first.
pub fn frames<'a>(profile: &'a Profile, stack: &Stack) -> Vec<FrameObject<'a>> {
    let mut frames = Vec::new();
    for frame in profile.frames(stack) {
        let location = &profile.locations[frame.location as usize];
        let binary = location.binary.map(|binary| &profile.binaries[binary as usize]);
        for line in profile.lines_of(frame.location) {
            frames.push(FrameObject {
                function: profile.function_name(line.function),
                file: line.file.map(|file| profile.names.get(file)),
                line: (line.line != 0).then_some(line.line),
                inlined: line.inlined,
                module: binary.map(|binary| base_name(&binary.path)),
                build_id: binary.filter(|b| !b.build_id.is_empty()).map(|b| hex(&b.build_id)),
                address: format!("{:#x}", location.address),
                found_by: found_by_name(frame.found_by),
            });
        }
    }
    frames
}

fn line<'a>(profile: &'a Profile, bucket: &Bucket) -> Line<'a> {
    let stack = &profile.stacks[bucket.stack as usize];
    let process = profile.process_of(bucket.thread);
    let thread = &profile.threads[bucket.thread as usize];
    let measure = profile.measure(bucket.event);
    let carried = profile.tracepoints.carried(bucket.fields);
    Line {
        process: process.name(),
        pid: process.info.pid,
        tid: thread.tid,
        thread: &thread.name,
        event: carried.map_or(&measure.name, |carried| &carried.event),
        unit: measure.unit_name(),
        fields: carried.and_then(|carried| FieldObject::of(&carried.fields)),
        samples: bucket.samples,
        weight: bucket.weight,
        end: end_name(stack.end),
        frames: frames(profile, stack),
    }
}
