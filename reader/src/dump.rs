//! `dump`: the current stacks of all threads of a running process, without pausing it.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use selfwind_profile::digits::counted;
use selfwind_profile::output::jsonl::{FrameObject, frames};
use selfwind_profile::profile::{self, Process, Profile, Stack};
use selfwind_profile::profile_file::{Event, Sample, SessionInfo};
use selfwind_profile::symbolize::SymbolSources;
use serde::Serialize;
use unwind::End;

use crate::flags::process_id::process_id;
use crate::flags::request::RequestFlags;
use crate::flags::symbols::SymbolArgs;
use crate::proc::{self, threads};
use crate::target::clock;
use crate::target::inject;
use crate::target::request::thread::waiting_call;
use crate::target::request::{Answer, Report, Target, TargetError, ask};
use crate::terminal::notices;
use crate::terminal::screen::printable;

/// Thread numbers from here on are assigned here, not by the agent.
const OURS: u32 = 1 << 31;

const HELP: &str = "Examples:
  selfwind dump -p 4711                  all its threads
  selfwind dump -p 4711 --gentle         except those that a signal would disturb

Each thread unwinds itself when the agent's signal asks it to. The process is not paused, and recordings continue. \
A process that was attached to earlier, by `selfwind attach` or `record -p`, is attached to again for the dump. A \
thread that waits in a system call is woken: read, write, wait and locks resume by themselves; poll, select, epoll_wait \
and sleeps return EINTR to the program, as after any signal (--gentle skips such threads).";

/// The flags of `dump`.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct DumpArgs {
    /// The process
    #[arg(short, long, value_name = "PID", value_parser = process_id)]
    pid: u32,
    /// Only this thread
    #[arg(short, long, value_name = "TID")]
    tid: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    request: RequestFlags,
    #[command(flatten)]
    symbols: SymbolArgs,
}

/// A dump.
#[derive(Serialize)]
struct Dump<'a> {
    pid: u32,
    process: String,
    exe: String,
    /// The threads that were asked.
    threads: Vec<ThreadDump<'a>>,
    /// How many of them returned a stack.
    answered: usize,
    /// From the first request to the last answer, without the look-up of names.
    elapsed_ns: u64,
}

#[derive(Serialize)]
struct ThreadDump<'a> {
    tid: u32,
    name: &'a str,
    /// The kernel's state letter, read before the request.
    state: char,
    /// Where in the kernel it was waiting then.
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_channel: Option<&'a str>,
    /// The system call it was in then.
    #[serde(skip_serializing_if = "Option::is_none")]
    system_call: Option<String>,
    /// Why there is no stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    silent: Option<String>,
    /// From the signal to the end of the walk.
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ns: Option<u64>,
    /// Why the walk ended; `root` for a complete stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<&'static str>,
    /// Leaf first.
    frames: Vec<FrameObject<'a>>,
}

/// Prints the stacks. Injects the agent for that time if the process is not sampled any more.
///
/// # Errors
/// If the process cannot be asked, or none of its threads answered.
pub(crate) fn run(options: &DumpArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let again = proc::start_time(options.pid).is_some() && inject::resume(options.pid)?;
    let dumped = dump(options, out);
    if again {
        // It may have ended.
        let _ = inject::detach(options.pid);
    }
    dumped
}

fn dump(options: &DumpArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut target = Target::find(options.pid)?;
    let gone = |_| TargetError::NoProcess(options.pid);
    let mut tids = threads(options.pid).map_err(gone)?;
    if let Some(tid) = options.tid {
        anyhow::ensure!(
            tids.contains(&tid),
            "process {} has no thread {tid}; its threads: {tids:?}",
            options.pid
        );
        tids = vec![tid];
    }
    let began = Instant::now();
    let reports = ask(&mut target, &tids, options.request.into())?;
    let elapsed = began.elapsed();
    target.learn();
    let profile = name(&mut target, &reports, &(&options.symbols).into());
    let dump = describe(&mut target, &profile, &reports, elapsed);
    if options.json {
        serde_json::to_writer(&mut *out, &dump)?;
        writeln!(out)?;
    } else {
        print(&dump, out)?;
    }
    out.flush()?;
    if dump.answered == 0 {
        notices::warn(format_args!("no thread of process {} answered", options.pid));
        anyhow::bail!("there are no stacks to show");
    }
    Ok(())
}

/// Looks up the names of all frames. Each answer becomes a sample of a profile in memory.
fn name(target: &mut Target, reports: &[Report], sources: &SymbolSources) -> Profile {
    let mut events = std::mem::take(&mut target.events);
    events.insert(
        0,
        Event::Session(SessionInfo {
            started_realtime_ns: clock::realtime_ns(),
            started_ns: clock::monotonic_ns(),
            ..SessionInfo::default()
        }),
    );
    events.extend(reports.iter().enumerate().filter_map(|(number, report)| {
        let answer = report.outcome.as_ref().ok()?;
        Some(Event::Sample(Sample {
            tid: report.thread.tid,
            thread_seq: OURS | number as u32,
            ns: u64::MAX,
            weight: 1,
            end: answer.head.end,
            nonce: answer.nonce.0,
            frames: answer.frames.clone(),
            ..Sample::default()
        }))
    }));
    profile::of_events(events, sources)
}

fn describe<'a>(
    target: &mut Target,
    profile: &'a Profile,
    reports: &'a [Report],
    elapsed: Duration,
) -> Dump<'a> {
    let scale = target.scale();
    let stacks: HashMap<u32, &Stack> = profile
        .buckets
        .iter()
        .map(|bucket| (profile.threads[bucket.thread as usize].seq, &profile.stacks[bucket.stack as usize]))
        .collect();
    let process = profile.processes.first();
    let thread = |(number, report): (usize, &'a Report)| {
        let answer = report.outcome.as_ref();
        let stack = stacks.get(&(OURS | number as u32));
        ThreadDump {
            tid: report.thread.tid,
            name: &report.thread.name,
            state: report.thread.state,
            wait_channel: report.wait_channel.as_deref(),
            system_call: report.system_call.map(|number| match waiting_call(number) {
                Some((name, _)) => name.to_owned(),
                None => format!("syscall_{number}"),
            }),
            silent: answer.err().map(ToString::to_string),
            latency_ns: answer.ok().map(|answer| scale.span_ns(latency(answer))),
            end: answer.ok().map(|answer| End::from_number(answer.head.end).map_or("unknown", End::name)),
            frames: stack.map_or_else(Vec::new, |stack| frames(profile, stack)),
        }
    };
    Dump {
        pid: target.pid,
        process: process.map_or_else(|| "?".into(), Process::name),
        exe: process.map_or_else(String::new, |process| process.info.exe.display().to_string()),
        answered: reports.iter().filter(|report| report.outcome.is_ok()).count(),
        threads: reports.iter().enumerate().map(thread).collect(),
        elapsed_ns: elapsed.as_nanos() as u64,
    }
}

/// Ticks from the signal to the end of the walk.
fn latency(answer: &Answer) -> u64 {
    answer.head.walked.saturating_sub(answer.sent)
}

fn print(dump: &Dump<'_>, out: &mut dyn Write) -> io::Result<()> {
    let Dump { pid, process, exe, threads, answered, elapsed_ns } = dump;
    let [process, exe] = [process, exe].map(|name| printable(name));
    let ms = *elapsed_ns as f64 / 1e6;
    writeln!(
        out,
        "process {pid} {process} ({exe}): {answered} of {} in {ms:.1} ms",
        counted(threads.len() as u64, "thread", "threads")
    )?;
    for thread in threads {
        write!(out, "\nthread {} {} {}", thread.tid, printable(thread.name), thread.state)?;
        if let Some(call) = &thread.system_call {
            write!(out, " in {call}")?;
        }
        if let Some(channel) = thread.wait_channel {
            write!(out, " ({channel})")?;
        }
        match (&thread.silent, thread.latency_ns) {
            (Some(silent), _) => writeln!(out, ": no stack: {silent}")?,
            (None, latency) => writeln!(out, ": {:.0} us", latency.unwrap_or(0) as f64 / 1e3)?,
        }
        for (number, frame) in thread.frames.iter().enumerate() {
            writeln!(out, "{number:>5}  {}", printable(&frame.to_string()))?;
        }
        if let Some(end) = thread.end.filter(|&end| end != End::Root.name()) {
            writeln!(out, "       [truncated: {end}]")?;
        }
    }
    Ok(())
}
