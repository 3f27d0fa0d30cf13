//! `tail`: prints samples of running programs as they arrive, with names, one line each.

use std::io::{self, Write};
use std::sync::Arc;

use selfwind_profile::profile_file::{Event, Sample, end_name};
use selfwind_profile::tracepoint::{FieldObject, FieldValue};
use serde::Serialize;
use unwind::End;

use crate::drain::collector::{Collector, Scope};
use crate::drain::follow::{Flow, follow};
use crate::drain::listener::Listener;
use crate::drain::watch;
use crate::live::{Image, Live, LiveSample, Located};
use crate::target::attach::Doorbell;
use crate::target::clock;
use crate::target::session;
use crate::terminal::notices::Notices;
use crate::terminal::screen::printable;

/// Prints the samples of `pid`, or of every running process with a flight recorder, until interrupted or until the process
/// ends.
pub(crate) fn run(pid: Option<u32>, json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let scope = pid.map_or(Scope::Living, Scope::Process);
    let mut collector = Collector::new(session::flight_directories(), scope, Notices::Normal).keep_regions();
    if let Some(pid) = pid {
        collector.find_process(pid)?;
    }
    let signals = watch::block_signals(false)?;
    let doorbell = Arc::new(Doorbell::private()?);
    let events = watch::start(signals, None, doorbell.clone())?;
    let mut tail = Tail::new(json, out);
    follow(&mut collector, &doorbell, &events, None, &mut tail, &mut |_| Flow::Finish)?;
    collector.finish(&mut tail)?;
    Ok(tail.end_pass()?)
}

/// Prints samples once per pass: naming many addresses of a binary at once is much cheaper.
struct Tail<'a> {
    json: bool,
    out: &'a mut dyn Write,
    started_ns: u64,
    live: Live,
    pending: Vec<Sample>,
}

#[derive(Serialize)]
struct SampleLine<'a> {
    time_ns: u64,
    pid: u32,
    tid: u32,
    process: &'a str,
    thread: &'a str,
    weight: u64,
    /// `PROVIDER:NAME` of a tracepoint, and the fields of its event.
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fields: Option<FieldObject<'a>>,
    end: &'static str,
    frames: Vec<FrameLine<'a>>,
}

/// A function; functions inlined into the next one share its address.
#[derive(Serialize)]
struct FrameLine<'a> {
    function: &'a str,
    #[serde(skip_serializing_if = "String::is_empty")]
    module: String,
    address: u64,
    /// Its mark in folded stacks, where the module is missing.
    #[serde(skip)]
    mark: String,
}

impl<'a> Tail<'a> {
    fn new(json: bool, out: &'a mut dyn Write) -> Self {
        let started_ns = clock::monotonic_ns();
        Self { json, out, started_ns, live: Live::default(), pending: Vec::new() }
    }

    fn frames(&self, stack: &[Located]) -> Vec<FrameLine<'_>> {
        let frame = |located| {
            let line = move |function| FrameLine {
                function,
                module: Located::module(located),
                address: located.address,
                mark: located.mark().to_owned(),
            };
            self.live.functions(located).map(line)
        };
        self.live.shown(stack).flat_map(frame).collect()
    }

    fn print(&mut self, sample: &Sample, part: &LiveSample) -> io::Result<()> {
        let nobody = Image::default();
        let image = self.live.process(sample.process).unwrap_or(&nobody);
        let process = image.program();
        let tracepoints = &self.live.tracepoints;
        let event =
            sample.fields.as_deref().map(|fields| tracepoints.name(sample.process, fields.tracepoint));
        let carried: Vec<(String, FieldValue)> = sample
            .fields
            .iter()
            .flat_map(|fields| {
                let named = tracepoints.named(sample.process, fields);
                named.map(|(name, value)| (name.into_owned(), value.clone()))
            })
            .collect();
        let line = SampleLine {
            time_ns: part.ns,
            pid: image.info.pid,
            tid: sample.tid,
            process: &process,
            thread: image.thread(sample.thread_seq),
            weight: part.weight,
            fields: FieldObject::of(&carried),
            event,
            end: end_name(sample.end),
            frames: self.frames(&part.stack),
        };
        let mut text = Vec::new();
        if self.json {
            serde_json::to_writer(&mut text, &line)?;
        } else {
            // Samples from a flight recorder are older than this command: their time is negative.
            let seconds = (line.time_ns as f64 - self.started_ns as f64) / 1e9;
            let (pid, tid) = (line.pid, line.tid);
            write!(text, "{seconds:>11.6} {process} {pid}/{tid}")?;
            if line.weight != 1 {
                write!(text, " x{}", line.weight)?;
            }
            if let Some(event) = &line.event {
                write!(text, " {event}")?;
                for (name, value) in &carried {
                    write!(text, " {name}={}", printable(&value.to_string()))?;
                }
            }
            for (number, frame) in line.frames.iter().enumerate() {
                let before = if number == 0 { "  " } else { " < " };
                write!(text, "{before}{}{}", frame.function, frame.mark)?;
            }
            if sample.end != End::Root as u8 {
                write!(text, " < [truncated: {}]", line.end)?;
            }
        }
        text.push(b'\n');
        self.out.write_all(&text)
    }
}

impl Listener for Tail<'_> {
    fn event(&mut self, event: Event) -> io::Result<()> {
        match event {
            Event::Sample(sample) => self.pending.push(sample),
            // Print the samples before the names they need are removed.
            gone @ (Event::ThreadEnd(_) | Event::ProcessEnd(_)) => {
                self.end_pass()?;
                self.live.learn(gone);
            }
            event => self.live.learn(event),
        }
        Ok(())
    }

    fn end_pass(&mut self) -> io::Result<()> {
        let samples = std::mem::take(&mut self.pending);
        let parts: Vec<Vec<LiveSample>> = samples.iter().map(|sample| self.live.parts(sample)).collect();
        self.live.name(parts.iter().flatten().flat_map(|part| &part.stack));
        for (sample, parts) in samples.iter().zip(&parts) {
            for part in parts {
                self.print(sample, part)?;
            }
        }
        self.out.flush()
    }
}
