//! `request`: shows each step of the request protocol and its latency.

use std::io::{self, Write};

use serde::Serialize;
use shm_format::{Scale, Trigger};
use unwind::End;

use crate::flags::request::RequestFlags;
use crate::proc::threads;
use crate::target::request::{Answer, Target, TargetError, ask};

const EXAMPLES: &str = "Examples:
  selfwind request -p 4711               each step of one request, and its time
  selfwind request -p 4711 -n 1000       latency of 1000 requests";

/// The flags of `request`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RequestArgs {
    /// The process
    #[arg(short, long, value_name = "PID")]
    pid: u32,
    /// Thread to ask [default: the main thread]
    #[arg(short, long, value_name = "TID")]
    tid: Option<u32>,
    /// Number of requests, sent one after the other
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1)]
    count: u32,
    /// Print one JSON object per request, and one for the summary
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    request: RequestFlags,
}

/// The steps of one request, in nanoseconds after the signal was about to be sent.
#[derive(Serialize)]
struct Steps {
    nonce: String,
    /// The signal is queued for the thread.
    queued_ns: u64,
    /// The handler begins.
    entered_ns: u64,
    /// The stack is walked.
    walked_ns: u64,
    /// The reader has the stack.
    seen_ns: u64,
    frames: u16,
    end: &'static str,
    trigger: &'static str,
}

/// Median and 99th percentile of many requests.
#[derive(Serialize)]
struct Summary {
    requests: usize,
    answered: usize,
    entered_ns: [u64; 2],
    walk_ns: [u64; 2],
    seen_ns: [u64; 2],
}

/// Sends `count` requests to one thread and shows each step.
///
/// # Errors
/// If the process cannot be asked, or the thread does not answer.
pub(crate) fn run(options: &RequestArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut target = Target::find(options.pid)?;
    let tid = match options.tid {
        Some(tid) => tid,
        None => *threads(options.pid)
            .ok()
            .and_then(|threads| threads.first().copied())
            .as_ref()
            .ok_or(TargetError::NoProcess(options.pid))?,
    };
    let quiet = options.count > 20 && !options.json;
    let mut all = Vec::new();
    for _ in 0..options.count.max(1) {
        let report = ask(&mut target, &[tid], options.request.into())?.pop();
        let Some(report) = report else { break };
        match report.outcome {
            Ok(answer) => {
                let steps = Steps::of(&answer, &target.scale());
                if options.json {
                    serde_json::to_writer(&mut *out, &steps)?;
                    writeln!(out)?;
                } else if !quiet {
                    steps.print(&target, tid, out)?;
                }
                all.push(steps);
            }
            Err(no_stack) => anyhow::bail!("thread {tid}: no stack after {} requests: {no_stack}", all.len()),
        }
    }
    let summary = Summary::of(&all, options.count.max(1) as usize);
    if options.json {
        serde_json::to_writer(&mut *out, &summary)?;
        writeln!(out)?;
    } else if all.len() > 1 {
        summary.print(out)?;
    }
    if !options.json {
        let (answered, late) = target.channel.requests(|requests| requests.counts());
        writeln!(
            out,
            "{answered} requests to the process answered in all; {late} signals came after their answer"
        )?;
    }
    Ok(out.flush()?)
}

impl Steps {
    fn of(answer: &Answer, scale: &Scale) -> Self {
        let after = |ticks: u64| scale.span_ns(ticks.saturating_sub(answer.sent));
        Self {
            nonce: format!("{:#018x}", answer.nonce.0),
            queued_ns: after(answer.queued),
            entered_ns: after(answer.head.entered),
            walked_ns: after(answer.head.walked),
            seen_ns: after(answer.seen),
            frames: answer.head.depth,
            end: End::from_number(answer.head.end).map_or("unknown", End::name),
            trigger: match answer.head.trigger {
                Trigger::Request => "request",
                Trigger::Tick => "tick",
                Trigger::Foreign => "foreign",
            },
        }
    }

    fn print(&self, target: &Target, tid: u32, out: &mut dyn Write) -> io::Result<()> {
        let us = |ns: u64| ns as f64 / 1e3;
        let by = match self.trigger {
            "request" => "by this signal",
            "tick" => "by a sample that was due; the signal comes later, or was merged with it",
            _ => "by a signal of the program's own",
        };
        writeln!(out, "nonce {} placed in {}", self.nonce, target.region.display())?;
        writeln!(out, "{:>10.1} us  signal {} queued at thread {tid}", us(self.queued_ns), target.signal)?;
        writeln!(out, "{:>10.1} us  handler entered, {by}", us(self.entered_ns))?;
        writeln!(
            out,
            "{:>10.1} us  walked: {} frames, {}",
            us(self.walked_ns),
            self.frames,
            if self.end == End::Root.name() { "complete" } else { self.end }
        )?;
        writeln!(out, "{:>10.1} us  answer seen", us(self.seen_ns))
    }
}

/// Median and 99th percentile.
fn percentiles(mut values: Vec<u64>) -> [u64; 2] {
    values.sort_unstable();
    let at = |part: usize| values.get(values.len() * part / 100).copied().unwrap_or(0);
    [at(50), at(99)]
}

impl Summary {
    fn of(all: &[Steps], requests: usize) -> Self {
        let of = |value: fn(&Steps) -> u64| percentiles(all.iter().map(value).collect());
        Self {
            requests,
            answered: all.len(),
            entered_ns: of(|steps| steps.entered_ns),
            walk_ns: of(|steps| steps.walked_ns.saturating_sub(steps.entered_ns)),
            seen_ns: of(|steps| steps.seen_ns),
        }
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let us = |ns: [u64; 2]| (ns[0] as f64 / 1e3, ns[1] as f64 / 1e3);
        writeln!(out, "{} of {} requests answered", self.answered, self.requests)?;
        for (what, ns) in [
            ("signal to handler", self.entered_ns),
            ("walk", self.walk_ns),
            ("signal to answer seen", self.seen_ns),
        ] {
            let (middle, slow) = us(ns);
            writeln!(out, "{what:<22} p50 {middle:>9.1} us  p99 {slow:>9.1} us")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_few_and_many() {
        assert_eq!(percentiles(vec![]), [0, 0]);
        assert_eq!(percentiles(vec![7]), [7, 7]);
        assert_eq!(percentiles((0..200).rev().collect()), [100, 198]);
    }
}
