//! The sampling thread of the wall clock: tracks processes and threads, schedules the passes and produces the samples.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use nix::libc;
use offline::{Binaries, Processes, Search};
use selfwind_profile::profile_file::{
    Event, KernelSample, KernelSymbol, ModuleGone, ModuleInfo, ProcessInfo, Sample, Setting,
};
use selfwind_profile::source_list::WALL_SOURCE;
use unwind::End;

use super::blocked::Blocked;
use super::mark::Mark;
use super::memory::RemoteMemory;
use super::message::{Message, receive};
use super::python::Python;
use super::stack::{Stack, Walker};
use super::thread::{Check, Thread, Wait, WaitSpan};
use super::thread_ids::ThreadIds;
use crate::drain::namespaces::PID_HERE;
use crate::proc::{self, Stat};
use crate::process_files;
use crate::target::clock;

/// Sampling takes at most this fraction (1/N) of a CPU.
const CPU_SHARE: u32 = 20;
/// Weight (1/N) of the latest pass in the moving average of the cost.
const SMOOTHING: u32 = 64;
/// After this many passes, search for threads even if their number has not changed.
const SEARCH_EVERY: u32 = 16;
/// The note about a process that cannot be found.
const LOST: &str = "a process in another PID namespace is not sampled: its number here is not known (start the program that makes the \
                    namespace under record)";
/// The key of notes.
const NOTE_KEY: &str = "wall clock";

/// A process whose threads are sampled.
struct Process {
    pid: u32,
    /// The number of the process that it was forked from, or of the image that it has replaced.
    parent: Option<u32>,
    began_ns: u64,
    /// `None` if its memory cannot be read.
    mem: Option<File>,
    threads: BTreeMap<u32, Thread>,
    /// Thread number and start time, by the thread's own id.
    numbers: HashMap<u32, (u32, u64)>,
    /// Samples of threads whose number is not known yet, by the same.
    unnumbered: HashMap<u32, Vec<Sample>>,
    /// Start and size of its modules.
    modules: HashMap<u32, (u64, u64)>,
    /// Its Python interpreter, if it has a known one.
    python: Option<Python>,
    /// Its threads' ids in its own PID namespace.
    ids: ThreadIds,
    /// There are new modules since the last pass.
    has_new_modules: bool,
    /// There are new threads since the last pass.
    has_new_threads: bool,
    /// How many threads the kernel counted in the last pass.
    thread_count: Option<u64>,
    /// It has ended, or executed another program.
    is_over: bool,
}

impl Process {
    /// Looks for its threads at this pid.
    fn locate(&mut self, pid: u32) {
        self.pid = pid;
        self.mem = File::open(format!("/proc/{pid}/mem")).ok();
        self.ids = ThreadIds::of(pid);
        self.threads.clear();
        self.unnumbered.clear();
        self.has_new_threads = true;
    }
}

/// Samples the threads of all processes.
pub(super) struct Sampler<'b> {
    walker: Walker<'b>,
    processes: BTreeMap<u32, Process>,
    samples: &'b Sender<Event>,
    told: HashSet<Mark>,
    /// Microseconds for which it is not known what a thread waited for.
    hidden_us: u64,
    lacks_files: bool,
    looks: u32,
    /// Time before this does not count (CLOCK_MONOTONIC).
    since_ns: u64,
}

impl<'b> Sampler<'b> {
    /// Samples `frequency` times a second until it is told to end. Nothing before `since_ns` counts.
    pub(super) fn run(frequency: u32, since_ns: u64, messages: &Receiver<Message>, samples: &Sender<Event>) {
        let binaries = Binaries::new(Search::for_user());
        let walker = Walker::new(Processes::new(&binaries));
        let (processes, told) = (BTreeMap::new(), HashSet::new());
        let mut sampler = Sampler {
            walker,
            processes,
            samples,
            told,
            hidden_us: 0,
            lacks_files: false,
            looks: 0,
            since_ns,
        };
        let period = Duration::from_secs(1) / frequency.max(1);
        let mut random = clock::monotonic_ns() | 1;
        // Exponential moving average of a pass's CPU time. Using the last pass alone, an expensive one, which walks the stacks of new
        // waits, would delay the next pass and miss short waits.
        let mut average = Duration::ZERO;
        while let Some(events) = receive(messages) {
            events.into_iter().for_each(|event| sampler.learn(event));
            let began = clock::thread_cpu();
            sampler.pass();
            let cost = clock::thread_cpu().saturating_sub(began);
            average = average * (SMOOTHING - 1) / SMOOTHING + cost / SMOOTHING;
            // Random intervals of 0.5 to 1.5 periods (xorshift, Marsaglia, 2003), to avoid aliasing with the program.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let mean = period.max(average * CPU_SHARE);
            std::thread::sleep(mean / 2 + mean * (random % 1024) as u32 / 1024);
        }
        sampler.end();
    }

    fn learn(&mut self, event: Event) {
        match event {
            Event::Process(info) => self.process(&info),
            Event::Module(module) => self.module(&module),
            Event::ModuleGone(gone) => self.module_gone(&gone),
            Event::Setting(setting) => {
                if setting.key == PID_HERE {
                    self.relocate(&setting);
                } else if let Some(process) = self.processes.get_mut(&setting.process) {
                    process.python.get_or_insert_default().is_at(&setting.value);
                }
            }
            Event::Thread(thread) => {
                let Some(process) = self.processes.get_mut(&thread.process) else { return };
                let began_ns = thread.start_ns.max(self.since_ns);
                process.numbers.insert(thread.tid, (thread.seq, began_ns));
                process.has_new_threads = true;
                if let Some(seen) = process.threads.get_mut(&process.ids.outer(thread.tid)) {
                    seen.begins(began_ns);
                }
                for sample in process.unnumbered.remove(&thread.tid).into_iter().flatten() {
                    let _ = self.samples.send(Event::Sample(Sample { thread_seq: thread.seq, ..sample }));
                }
            }
            Event::ProcessEnd(end) => {
                self.leave(end.process);
                self.walker.forget(end.process, end.ns);
            }
            _ => {}
        }
    }

    /// Takes in the pid that a process has here. Whatever was seen of it is another process's.
    fn relocate(&mut self, setting: &Setting) {
        let id = setting.process;
        let Ok(pid) = setting.value.parse() else {
            return if self.processes.remove(&id).is_some() {
                self.note(id, LOST)
            };
        };
        if let Some(process) = self.processes.get_mut(&id) {
            process.locate(pid);
        }
        self.end_image_before(id);
    }

    /// Stops sampling the image that this one has replaced, if its process has executed another program: no threads are left of it.
    fn end_image_before(&mut self, id: u32) {
        let pid_of = |id| self.processes.get(&id).map(|process| process.pid);
        let parent = self.processes.get(&id).and_then(|process| process.parent);
        if let Some(before) = parent.filter(|before| pid_of(*before) == pid_of(id)) {
            self.leave(before);
        }
    }

    fn process(&mut self, info: &ProcessInfo) {
        let mut process = Process {
            pid: info.pid,
            parent: info.parent,
            began_ns: info.start_ns.max(self.since_ns),
            mem: None,
            threads: BTreeMap::new(),
            numbers: HashMap::new(),
            unnumbered: HashMap::new(),
            modules: HashMap::new(),
            python: None,
            ids: ThreadIds::default(),
            has_new_modules: false,
            has_new_threads: true,
            thread_count: None,
            is_over: false,
        };
        process.locate(info.pid);
        self.processes.insert(info.id, process);
        self.end_image_before(info.id);
    }

    fn module(&mut self, module: &ModuleInfo) {
        if let Some(process) = self.processes.get_mut(&module.process) {
            process.has_new_modules = true;
            process.modules.insert(module.module, (module.start, module.end.saturating_sub(module.start)));
            self.walker.map(module, &process_files::path_here(process.pid, &module.path));
        }
    }

    fn module_gone(&mut self, gone: &ModuleGone) {
        let process = self.processes.get_mut(&gone.process);
        if let Some((start, len)) = process.and_then(|process| process.modules.remove(&gone.module)) {
            self.walker.unmap(gone, start, len);
        }
    }

    /// Samples all threads once.
    fn pass(&mut self) {
        self.looks = self.looks.wrapping_add(1);
        let living = self.processes.iter().filter(|(_, process)| !process.is_over);
        let ids: Vec<u32> = living.map(|(&id, _)| id).collect();
        for id in ids {
            if !self.sample_process(id) {
                self.leave(id);
            }
        }
    }

    /// Samples the threads of a process. False if none are left.
    fn sample_process(&mut self, id: u32) -> bool {
        let Some(process) = self.processes.get_mut(&id) else { return true };
        let mut found = Vec::new();
        let thread_count = proc::thread_count(process.pid).ok();
        let has_others = std::mem::replace(&mut process.thread_count, thread_count) != thread_count;
        if std::mem::take(&mut process.has_new_threads)
            || has_others
            || self.looks.is_multiple_of(SEARCH_EVERY)
        {
            match discover_threads(process) {
                Discovery::All => {}
                Discovery::NoFiles => self.report_open_file_limit(id),
                Discovery::ProcessEnded => return false,
            }
        }
        let Some(process) = self.processes.get_mut(&id) else { return true };
        if process.modules.is_empty() {
            // Its agent has not reported them yet: a stack would have no names.
            return true;
        }
        let has_new_modules = std::mem::take(&mut process.has_new_modules);
        let Process { pid, mem, threads, python, ids, .. } = process;
        python.iter_mut().for_each(Python::begin_pass);
        let stopped = OnceCell::new();
        let mut is_stopped =
            || *stopped.get_or_init(|| Stat::of(*pid).ok().flatten().is_some_and(|stat| stat.is_stopped()));
        threads.retain(|&tid, thread| {
            let mut spans = Vec::new();
            let mut walk = |blocked: Blocked| {
                let Some(mem) = mem else { return Some(Stack { frames: Vec::new(), end: End::Unreadable }) };
                let mut memory = RemoteMemory::new(mem, blocked.sp);
                if memory.is_gone() {
                    return None;
                }
                let native = self.walker.walk(id, clock::monotonic_ns(), blocked, &mut memory);
                let Some(python) = python else { return Some(native.into_stack()) };
                let whole = python.add_frames(native, ids.inner(tid), &mut memory);
                for function in python.take_new_functions(id) {
                    let _ = self.samples.send(Event::Function(function));
                }
                Some(whole.into_stack())
            };
            let look = thread.check(
                has_new_modules,
                &mut clock::monotonic_ns,
                &mut walk,
                &mut is_stopped,
                &mut spans,
            );
            let inner = ids.inner(tid);
            found.extend(spans.into_iter().map(|span| (inner, span)));
            if look == Check::Ended {
                ids.forget(tid);
            }
            look == Check::Lives
        });
        found.into_iter().for_each(|(tid, span)| self.tell(id, tid, span));
        true
    }

    /// Stops sampling a process.
    fn leave(&mut self, id: u32) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let mut found = Vec::new();
        for (&tid, thread) in &mut process.threads {
            let mut spans = Vec::new();
            thread.close(&mut spans);
            let inner = process.ids.inner(tid);
            found.extend(spans.into_iter().map(|span| (inner, span)));
        }
        found.into_iter().for_each(|(tid, span)| self.tell(id, tid, span));
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.threads.clear();
        process.is_over = true;
        // The numbers of its last threads may still arrive.
        if process.unnumbered.is_empty() {
            self.processes.remove(&id);
        }
    }

    /// Reports once that open files do not suffice for all threads.
    fn report_open_file_limit(&mut self, process: u32) {
        if !std::mem::replace(&mut self.lacks_files, true) {
            let value = "some threads are not sampled: each needs two open files in the recorder; raise the limit (ulimit -Hn)";
            self.note(process, value);
        }
    }

    fn note(&self, process: u32, value: &str) {
        let setting = Setting { process, key: NOTE_KEY.into(), value: value.into() };
        let _ = self.samples.send(Event::Setting(setting));
    }

    fn end(&mut self) {
        self.pass();
        let ids: Vec<u32> = self.processes.keys().copied().collect();
        ids.into_iter().for_each(|id| self.leave(id));
        for (_, process) in std::mem::take(&mut self.processes) {
            // Threads that no agent has reported get a number that it never assigns.
            let unnumbered = process.unnumbered.into_values().flatten();
            unnumbered.for_each(|sample| _ = self.samples.send(Event::Sample(sample)));
        }
    }

    /// Emits a sample for time during which a thread did not run.
    fn tell(&mut self, id: u32, tid: u32, span: WaitSpan) {
        let mark = Mark::of(span.wait);
        self.name(mark);
        self.complain_if_hidden(id, &span);
        let (frames, end) = match span.stack {
            Some(stack) => (stack.frames.clone(), stack.end),
            // That of a ready thread is replaced later by its last stack while running.
            None if matches!(span.wait, Wait::Ready | Wait::Exiting) => (Vec::new(), End::Root),
            None => (Vec::new(), End::Unreadable),
        };
        let kernel = KernelSample { ns: span.ns, weight: span.us, event: 0, frames: vec![mark.address()] };
        let mut sample = Sample {
            process: id,
            tid,
            thread_seq: 1 << 31 | tid,
            ns: span.ns,
            weight: span.us,
            end: end as u8,
            source: WALL_SOURCE,
            frames,
            kernel: vec![kernel],
            ..Sample::default()
        };
        let Some(process) = self.processes.get_mut(&id) else { return };
        match process.numbers.get(&tid) {
            Some((number, _)) => {
                sample.thread_seq = *number;
                let _ = self.samples.send(Event::Sample(sample));
            }
            None => process.unnumbered.entry(tid).or_default().push(sample),
        }
    }

    /// Emits the name of a mark before its first sample.
    fn name(&mut self, mark: Mark) {
        if !self.told.insert(mark) {
            return;
        }
        let (start, name) = (mark.address(), mark.name().into());
        let symbol = KernelSymbol { start, end: start + 1, name, module: String::new() };
        let _ = self.samples.send(Event::KernelSymbol(symbol));
    }

    /// Emits a note once it is so long unknown what threads wait for that it matters.
    fn complain_if_hidden(&mut self, process: u32, span: &WaitSpan) {
        const MATTERS_US: u64 = 10_000;
        if span.wait != Wait::Hidden || self.hidden_us > MATTERS_US {
            return;
        }
        self.hidden_us += u64::from(span.us);
        if self.hidden_us > MATTERS_US {
            let value = "where threads wait is hidden (/proc/PID/task/TID/syscall: the same user or root, a dumpable process, \
                         and with kernel.yama.ptrace_scope 1 a command started by record); their time is counted all the same";
            self.note(process, value);
        }
    }
}

/// The result of searching for threads.
enum Discovery {
    All,
    /// The limit of open files is reached.
    NoFiles,
    /// The process has ended.
    ProcessEnded,
}

/// Adds new threads.
fn discover_threads(process: &mut Process) -> Discovery {
    let Ok(tids) = proc::threads(process.pid) else { return Discovery::ProcessEnded };
    let mut met = Discovery::All;
    for tid in tids {
        if process.threads.contains_key(&tid) {
            continue;
        }
        let now = clock::monotonic_ns();
        let told = process.numbers.get(&process.ids.inner(tid)).map(|&(_, start)| start);
        // The main thread has existed from the start, others since now at the latest.
        let began = told.unwrap_or(if tid == process.pid { process.began_ns } else { now }).min(now);
        match Thread::open(process.pid, tid, began, now) {
            Ok(thread) => drop(process.threads.insert(tid, thread)),
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => met = Discovery::NoFiles,
            // It has ended.
            Err(_) => {}
        }
    }
    met
}
