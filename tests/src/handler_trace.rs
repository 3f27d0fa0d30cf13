//! Traces the sampling handler by ptrace: every instruction from the kernel's signal frame to `rt_sigreturn`.
//!
//! It shows exactly which code runs, which system calls it makes, and how much stack it uses.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::path::Path;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::binary::agent;
use crate::cache_lines::CacheLines;
use crate::scratch::Scratch;
use crate::single_step::image::{Images, mappings};
use crate::single_step::instruction::{Flow, classify};
use crate::single_step::tracee::{Event, Registers, Tracee};

/// What the traced runs of the handler did.
#[derive(Clone, Debug, Default)]
pub struct HandlerTrace {
    /// Complete runs traced.
    pub runs: u64,
    /// Instructions of each run.
    pub instructions: Vec<u64>,
    /// Maximum stack use of a run below the kernel's frame, in bytes.
    pub stack: u64,
    /// System calls by number, without the return from the signal.
    pub calls: BTreeMap<i64, u64>,
    /// Cache lines per run: of code, and of data by owner.
    pub lines: Vec<(usize, BTreeMap<String, usize>)>,
    /// Instructions outside the agent and the vdso, by location.
    pub outside: BTreeMap<String, u64>,
}

impl HandlerTrace {
    /// Instructions of the median run.
    pub fn usual_instructions(&self) -> u64 {
        median(self.instructions.iter().copied())
    }

    /// Instructions, code cache lines and data cache lines, averaged over all runs but the first, which does one-time
    /// work: independent of where the program happened to be interrupted.
    pub fn average(&self) -> [f64; 3] {
        let instructions = self.instructions.iter().map(|count| *count as f64);
        let code = self.lines.iter().map(|(code, _)| *code as f64);
        let data = self.lines.iter().map(|(_, data)| data.values().sum::<usize>() as f64);
        [mean(instructions), mean(code), mean(data)]
    }

    /// First quartile of the code and data cache lines. How many of the other runs do more depends on contention
    /// between the program's threads.
    pub fn first_quartile_lines(&self) -> (usize, usize) {
        let code = quarter(self.lines.iter().map(|(code, _)| *code));
        let data = quarter(self.lines.iter().map(|(_, data)| data.values().sum()));
        (code, data)
    }

    /// Cache lines of the median run: of code, and of data by owner.
    pub fn usual_lines(&self) -> (usize, BTreeMap<String, usize>) {
        let code = median(self.lines.iter().map(|(code, _)| *code));
        let owners: BTreeSet<&String> = self.lines.iter().flat_map(|(_, data)| data.keys()).collect();
        let of =
            |owner: &String| median(self.lines.iter().map(|(_, data)| data.get(owner).copied().unwrap_or(0)));
        (code, owners.into_iter().map(|owner| (owner.clone(), of(owner))).collect())
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.skip(1).fold((0, 0.0), |(count, sum), value| (count + 1, sum + value));
    sum / f64::from(count.max(1))
}

fn median<T: Ord + Copy + Default>(values: impl Iterator<Item = T>) -> T {
    quantile(values, 2)
}

fn quarter<T: Ord + Copy + Default>(values: impl Iterator<Item = T>) -> T {
    quantile(values, 4)
}

/// The 1/`parts` quantile.
fn quantile<T: Ord + Copy + Default>(values: impl Iterator<Item = T>, parts: usize) -> T {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    values.get(values.len() / parts).copied().unwrap_or_default()
}

/// Runs `program` under the agent with `settings` (environment variables such as `SELFWIND_FREQ`), and single-steps
/// every `every`-th run of its handler, until it ends or `limit` runs have been traced.
pub fn watch(
    program: &Path,
    arguments: &[&OsStr],
    settings: &[(&str, &str)],
    every: u64,
    limit: u64,
) -> io::Result<HandlerTrace> {
    let scratch = Scratch::new();
    let mut environment = vec![
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("LD_PRELOAD", agent().to_str().expect("UTF-8")),
        ("XDG_RUNTIME_DIR", scratch.path().to_str().expect("UTF-8")),
        // Single-stepped runs take very long, so there must be no rate limit.
        ("SELFWIND_MAX_OVERHEAD", "100"),
    ];
    environment.extend(settings);
    let tracee = Tracee::start(program, arguments, &environment)?;
    trace(&tracee, agent().file_name().and_then(OsStr::to_str).expect("a file"), every, limit)
}

/// Signals that are first delivered without a look. The agent starts meanwhile: on a busy machine, a thread whose handlers are
/// single-stepped has used the time until the next signal before it goes on.
const START: u64 = 10;

/// Lets `tracee` run and single-steps every `every`-th run of its SIGPROF handler, until it ends or `limit` runs have
/// been traced. `agent` is the file name of the agent.
fn trace(tracee: &Tracee, agent: &str, every: u64, limit: u64) -> io::Result<HandlerTrace> {
    let mut tracer = Tracer { tracee, agent, images: Images::default(), found: HandlerTrace::default() };
    tracee.resume(tracee.pid(), None)?;
    let (mut new, mut signals) = (Vec::new(), 0);
    while tracer.found.runs < limit {
        match tracee.wait()? {
            Event::Exited(_) | Event::Killed(_) => break,
            Event::ThreadEnded(_) => {}
            Event::Step(thread) | Event::Cloned(thread) => tracee.resume(thread, None)?,
            Event::Signal(thread, Signal::SIGSTOP) if !new.contains(&thread) => {
                // A new thread begins with a stop that is no signal of the program.
                new.push(thread);
                tracee.resume(thread, None)?;
            }
            Event::Signal(thread, Signal::SIGPROF) => {
                signals += 1;
                if signals > START && signals % every == 0 {
                    tracer.run(thread)?;
                } else {
                    tracee.resume(thread, Some(Signal::SIGPROF))?;
                }
            }
            Event::Signal(thread, signal) => tracee.resume(thread, Some(signal))?,
        }
    }
    Ok(tracer.found)
}

struct Tracer<'a> {
    tracee: &'a Tracee,
    agent: &'a str,
    images: Images,
    found: HandlerTrace,
}

impl Tracer<'_> {
    /// Single-steps `thread`, which is about to receive the signal, through its handler, and resumes it.
    fn run(&mut self, thread: Pid) -> io::Result<()> {
        self.images.refresh(self.tracee)?;
        let before = self.tracee.registers(thread)?;
        self.tracee.step(thread, Some(Signal::SIGPROF))?;
        if !self.stopped(thread)? {
            return Ok(());
        }
        let entry = self.tracee.registers(thread)?;
        if entry.rip == before.rip || entry.rsp == before.rsp {
            // Ignored or blocked by now: no handler ran.
            return self.tracee.resume(thread, None);
        }
        let (mut steps, mut lowest, mut now) = (0, entry.rsp, entry);
        let mut lines = CacheLines::default();
        loop {
            if self.returns(&now) {
                break;
            }
            self.look(&now, &mut lines);
            steps += 1;
            lowest = lowest.min(now.rsp);
            self.tracee.step(thread, None)?;
            if !self.stopped(thread)? {
                return Ok(());
            }
            now = self.tracee.registers(thread)?;
        }
        self.found.lines.push((lines.code(), self.data_lines(&lines, entry.rsp)?));
        self.found.runs += 1;
        self.found.instructions.push(steps);
        self.found.stack = self.found.stack.max(entry.rsp - lowest);
        self.tracee.resume(thread, None)
    }

    /// Waits for the stop of `thread` after a step, while other threads continue. False when it ended.
    fn stopped(&self, thread: Pid) -> io::Result<bool> {
        match self.tracee.wait_for(thread)? {
            Event::Step(_) => Ok(true),
            Event::Signal(_, signal) => {
                // All signals are blocked in the handler; only a fault comes through, and it ends the program.
                self.tracee.resume(thread, Some(signal))?;
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Attributes data cache lines: to the handler's stack, to a file, or to anonymous memory.
    fn data_lines(&self, lines: &CacheLines, sp: u64) -> io::Result<BTreeMap<String, usize>> {
        let mappings = mappings(self.tracee.pid().as_raw())?;
        let of =
            |address: u64| mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&address));
        let own = of(sp);
        Ok(lines.data(|address| match of(address) {
            Some(mapping) if Some(mapping) == own => "signal stack".to_owned(),
            Some(mapping) => match mapping.path.rsplit('/').next().unwrap_or_default() {
                "" => "anonymous".to_owned(),
                name if name.contains(".region") => "region".to_owned(),
                name => name.to_owned(),
            },
            None => "not mapped any more".to_owned(),
        }))
    }

    fn code(&self, now: &Registers) -> ([u8; 15], usize) {
        let mut code = [0; 15];
        let got = self.tracee.read(now.rip, &mut code);
        (code, got)
    }

    fn flow(&self, now: &Registers) -> Flow {
        let (code, got) = self.code(now);
        classify(&code[..got])
    }

    fn returns(&self, now: &Registers) -> bool {
        now.rax as i64 == libc::SYS_rt_sigreturn && self.flow(now) == Flow::Syscall
    }

    fn look(&mut self, now: &Registers, lines: &mut CacheLines) {
        let (code, got) = self.code(now);
        lines.note(&code[..got], now);
        if classify(&code[..got]) == Flow::Syscall {
            *self.found.calls.entry(now.rax as i64).or_default() += 1;
        }
        let image = self.images.at(now.rip).map(|image| image.name());
        if !image.is_some_and(|name| name == self.agent || name == "[vdso]") {
            *self.found.outside.entry(self.images.describe(now.rip)).or_default() += 1;
        }
    }
}
