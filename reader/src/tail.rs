//! `tail`: samples of running programs as they come, named, one line each.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use unwind::{End, Frame};

use crate::attach::Bell;
use crate::collector::{Collector, Scope};
use crate::follow::{Flow, Listener, follow};
use crate::notices::Notices;
use crate::profile_file::{Event, ModuleInfo, ProcessInfo, Sample};
use crate::session;
use crate::symbolize::{DebugDirectories, Request, base_name, symbolize};
use crate::{clock, watch};

/// Named addresses kept; then naming starts anew.
const NAMES_KEPT: usize = 1 << 20;

/// Prints the samples of `pid`, or of every living process with a flight recorder, until interrupted or until
/// the process has ended.
pub fn run(pid: Option<u32>, json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut directories = session::directories();
    directories.retain(|directory| !session::is_recorded(directory));
    directories.extend(session::bases().into_iter().map(|base| base.join(session::FLIGHT)));
    directories.sort();
    directories.dedup();
    let scope = pid.map_or(Scope::Living, Scope::Process);
    let mut collector = Collector::new(directories, scope, Notices::Normal).keep_regions();
    if let Some(pid) = pid {
        collector.find_process(pid)?;
    }
    let signals = watch::hold_signals()?;
    let bell = Arc::new(Bell::private()?);
    let happenings = watch::start(signals, None, bell.clone())?;
    let mut tail = Tail::new(json, out);
    follow(&mut collector, &bell, &happenings, None, &mut tail, &mut |_| Flow::Finish)?;
    collector.finish(&mut tail)?;
    Ok(tail.pause()?)
}

/// Prints samples, a pass at a time: naming many addresses of a binary at once is much cheaper.
struct Tail<'a> {
    json: bool,
    out: &'a mut dyn Write,
    started_ns: u64,
    processes: BTreeMap<u32, Image>,
    pending: Vec<Sample>,
    names: HashMap<(Arc<Binary>, u64), Vec<String>>,
}

/// A process image and what is mapped in it.
#[derive(Default)]
struct Image {
    info: ProcessInfo,
    /// By first address.
    modules: BTreeMap<u64, Module>,
    threads: BTreeMap<u32, String>,
}

struct Module {
    number: u32,
    end: u64,
    bias: u64,
    binary: Arc<Binary>,
}

#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Binary {
    path: PathBuf,
    build_id: Vec<u8>,
}

/// A frame that is ready to be named.
struct Located {
    binary: Option<Arc<Binary>>,
    address: u64,
}

#[derive(Serialize)]
struct SampleLine<'a> {
    time_ns: u64,
    pid: u32,
    tid: u32,
    process: &'a str,
    thread: &'a str,
    weight: u32,
    end: &'static str,
    frames: Vec<FrameLine<'a>>,
}

/// A function; those inlined into the next one have its address too.
#[derive(Serialize)]
struct FrameLine<'a> {
    function: &'a str,
    #[serde(skip_serializing_if = "String::is_empty")]
    module: String,
    address: u64,
}

impl<'a> Tail<'a> {
    fn new(json: bool, out: &'a mut dyn Write) -> Self {
        let started_ns = clock::monotonic_ns();
        Self { json, out, started_ns, processes: BTreeMap::new(), pending: Vec::new(), names: HashMap::new() }
    }

    fn image(&mut self, process: u32) -> &mut Image {
        self.processes.entry(process).or_default()
    }

    fn map(&mut self, module: ModuleInfo) {
        let binary = Arc::new(Binary { path: module.path, build_id: module.build_id });
        let ModuleInfo { start, end, bias, module: number, process, .. } = module;
        self.image(process).modules.insert(start, Module { number, end, bias, binary });
    }

    fn locate(&self, sample: &Sample) -> Vec<Located> {
        let modules = self.processes.get(&sample.process).map(|image| &image.modules);
        let locate = |&word: &u64| {
            let address = Frame::from_bits(word).lookup_address();
            let below = modules.and_then(|modules| modules.range(..=address).next_back());
            match below.filter(|(_, module)| address < module.end) {
                Some((_, module)) => Located {
                    binary: Some(module.binary.clone()),
                    address: address.wrapping_sub(module.bias),
                },
                None => Located { binary: None, address },
            }
        };
        sample.frames.iter().map(locate).collect()
    }

    /// Names the addresses that have no name yet.
    fn name(&mut self, stacks: &[Vec<Located>]) {
        if self.names.len() > NAMES_KEPT {
            self.names.clear();
        }
        let mut missing: BTreeMap<Arc<Binary>, BTreeSet<u64>> = BTreeMap::new();
        for located in stacks.iter().flatten() {
            let Some(binary) = &located.binary else { continue };
            if !self.names.contains_key(&(binary.clone(), located.address)) {
                missing.entry(binary.clone()).or_default().insert(located.address);
            }
        }
        let request = |(binary, addresses): (&Arc<Binary>, &BTreeSet<u64>)| Request {
            path: binary.path.clone(),
            build_id: binary.build_id.clone(),
            addresses: addresses.iter().copied().collect(),
        };
        let requests: Vec<Request> = missing.iter().map(request).collect();
        let answers = symbolize(&requests, &DebugDirectories::default());
        for ((binary, addresses), symbols) in missing.into_iter().zip(answers) {
            for (address, range) in addresses.into_iter().zip(&symbols.ranges) {
                let lines = symbols.lines.get(range.start as usize..range.end as usize).unwrap_or(&[]);
                let names = lines.iter().map(|line| symbols.names.get(line.function).to_owned()).collect();
                self.names.insert((binary.clone(), address), names);
            }
        }
    }

    fn frames<'s>(&'s self, stack: &[Located]) -> Vec<FrameLine<'s>> {
        let mut frames = Vec::new();
        for located in stack {
            let address = located.address;
            let Some(binary) = &located.binary else {
                frames.push(FrameLine { function: "[unknown]", module: String::new(), address });
                continue;
            };
            let names = self.names.get(&(binary.clone(), address));
            frames.extend(names.into_iter().flatten().map(|function| FrameLine {
                function,
                module: base_name(&binary.path),
                address,
            }));
        }
        frames
    }

    fn print(&mut self, sample: &Sample, stack: &[Located]) -> io::Result<()> {
        let nobody = Image::default();
        let image = self.processes.get(&sample.process).unwrap_or(&nobody);
        let process = base_name(&image.info.exe);
        let line = SampleLine {
            time_ns: sample.ns,
            pid: image.info.pid,
            tid: sample.tid,
            process: &process,
            thread: image.threads.get(&sample.thread_seq).map_or("", String::as_str),
            weight: sample.weight,
            end: End::from_number(sample.end).map_or("unknown", End::name),
            frames: self.frames(stack),
        };
        let mut text = Vec::new();
        if self.json {
            serde_json::to_writer(&mut text, &line)?;
        } else {
            // Samples that waited in a flight recorder are older than we are.
            let seconds = (line.time_ns as f64 - self.started_ns as f64) / 1e9;
            let (pid, tid) = (line.pid, line.tid);
            write!(text, "{seconds:>11.6} {process} {pid}/{tid}")?;
            if line.weight != 1 {
                write!(text, " x{}", line.weight)?;
            }
            let functions: Vec<&str> = line.frames.iter().map(|frame| frame.function).collect();
            write!(text, "  {}", functions.join(" < "))?;
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
            Event::Process(info) => {
                let id = info.id;
                self.image(id).info = info;
            }
            Event::Module(module) => self.map(module),
            Event::ModuleGone(gone) => {
                self.image(gone.process).modules.retain(|_, module| module.number != gone.module);
            }
            Event::Thread(thread) => {
                self.image(thread.process).threads.insert(thread.seq, thread.name);
            }
            Event::ThreadName(thread) => {
                self.image(thread.process).threads.insert(thread.seq, thread.name);
            }
            Event::ThreadEnd(thread) => {
                self.pause()?;
                self.image(thread.process).threads.remove(&thread.seq);
            }
            Event::Sample(sample) => self.pending.push(sample),
            Event::ProcessEnd(end) => {
                self.pause()?;
                self.processes.remove(&end.process);
            }
            Event::Session(_) | Event::Counters(_) | Event::End(_) => {}
        }
        Ok(())
    }

    fn pause(&mut self) -> io::Result<()> {
        let samples = std::mem::take(&mut self.pending);
        let stacks: Vec<Vec<Located>> = samples.iter().map(|sample| self.locate(sample)).collect();
        self.name(&stacks);
        for (sample, stack) in samples.iter().zip(&stacks) {
            self.print(sample, stack)?;
        }
        self.out.flush()
    }
}
