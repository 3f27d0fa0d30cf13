//! The thread that looks: which processes and threads there are, when to look, and what samples come of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use nix::libc;
use offline::{Binaries, Processes, Search};
use selfwind_profile::profile_file::{
    Event, KernelSample, KernelSymbol, ModuleGone, ModuleInfo, ProcessInfo, Sample, Setting, WALL_MARKS,
};
use selfwind_profile::source_list::WALL_SOURCE;
use unwind::End;

use super::blocked::{self, NO_CALL};
use super::stack::{Stack, Walker};
use super::thread::{Look, Spell, Thread, Wait};
use super::{Told, news};
use crate::proc;
use crate::target::clock;

/// Looks take at most this part of a processor's time.
const COST: u32 = 20;
/// The last look is one part in so many of their average cost.
const SMOOTH: u32 = 64;
/// Looks after which threads are looked for that no agent has told of.
const SELDOM: u32 = 16;
/// Marks that are no system call.
const READY: u16 = NO_CALL - 1;
const HIDDEN: u16 = NO_CALL - 2;
/// The topic of what there is to say.
const TOPIC: &str = "wall clock";

/// A process whose threads are looked at.
struct Process {
    pid: u32,
    began_ns: u64,
    /// None: its memory may not be read.
    mem: Option<File>,
    threads: BTreeMap<u32, Thread>,
    /// The numbers of threads in the process, by thread id, and when they began.
    numbers: HashMap<u32, (u32, u64)>,
    /// Samples of threads whose number has not been told yet.
    unnumbered: HashMap<u32, Vec<Sample>>,
    /// First address and bytes of its modules.
    modules: HashMap<u32, (u64, u64)>,
    /// Modules have come since the last look.
    news: bool,
    /// So have threads.
    has_new_threads: bool,
    /// It has ended, or executed another program.
    is_over: bool,
}

/// Looks at the threads of all processes.
pub(super) struct Looker<'b> {
    walker: Walker<'b>,
    processes: BTreeMap<u32, Process>,
    finds: &'b Sender<Event>,
    told: HashSet<u16>,
    has_complained: bool,
    lacks_files: bool,
    looks: u32,
}

impl<'b> Looker<'b> {
    /// Looks `frequency` times a second until it is told to end.
    pub(super) fn run(frequency: u32, hears: &Receiver<Told>, finds: &Sender<Event>) {
        let binaries = Binaries::new(Search::for_user());
        let walker = Walker::new(Processes::new(&binaries));
        let (processes, told) = (BTreeMap::new(), HashSet::new());
        let mut looker =
            Looker { walker, processes, finds, told, has_complained: false, lacks_files: false, looks: 0 };
        let period = Duration::from_secs(1) / frequency.max(1);
        let mut random = clock::monotonic_ns() | 1;
        // Exponential moving average of a look's CPU time. With the last look's alone, the expensive looks, those that walk a
        // new wait's stack, would delay the next one and miss short waits.
        let mut average = Duration::ZERO;
        while let Some(events) = news(hears) {
            events.into_iter().for_each(|event| looker.learn(event));
            let began = clock::thread_cpu();
            looker.look();
            let cost = clock::thread_cpu().saturating_sub(began);
            average = average * (SMOOTH - 1) / SMOOTH + cost / SMOOTH;
            // Not in step with the program (xorshift, Marsaglia, 2003): half a period to one and a half.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let mean = period.max(average * COST);
            std::thread::sleep(mean / 2 + mean * (random % 1024) as u32 / 1024);
        }
        looker.end();
    }

    fn learn(&mut self, event: Event) {
        match event {
            Event::Process(info) => self.process(&info),
            Event::Module(module) => self.module(&module),
            Event::ModuleGone(gone) => self.module_gone(&gone),
            Event::Thread(thread) => {
                let Some(process) = self.processes.get_mut(&thread.process) else { return };
                process.numbers.insert(thread.tid, (thread.seq, thread.start_ns));
                process.has_new_threads = true;
                if let Some(seen) = process.threads.get_mut(&thread.tid) {
                    seen.begins(thread.start_ns);
                }
                for sample in process.unnumbered.remove(&thread.tid).into_iter().flatten() {
                    let _ = self.finds.send(Event::Sample(Sample { thread_seq: thread.seq, ..sample }));
                }
            }
            Event::ProcessEnd(end) => {
                self.leave(end.process);
                self.walker.forget(end.process, end.ns);
            }
            _ => {}
        }
    }

    fn process(&mut self, info: &ProcessInfo) {
        // The image before an exec has no threads any more.
        let before =
            self.processes.iter().find(|(_, it)| it.pid == info.pid && !it.is_over).map(|(&id, _)| id);
        before.into_iter().for_each(|id| self.leave(id));
        let process = Process {
            pid: info.pid,
            began_ns: info.start_ns,
            mem: File::open(format!("/proc/{}/mem", info.pid)).ok(),
            threads: BTreeMap::new(),
            numbers: HashMap::new(),
            unnumbered: HashMap::new(),
            modules: HashMap::new(),
            news: false,
            has_new_threads: true,
            is_over: false,
        };
        self.processes.insert(info.id, process);
    }

    fn module(&mut self, module: &ModuleInfo) {
        if let Some(process) = self.processes.get_mut(&module.process) {
            process.news = true;
            process.modules.insert(module.module, (module.start, module.end.saturating_sub(module.start)));
            self.walker.map(module);
        }
    }

    fn module_gone(&mut self, gone: &ModuleGone) {
        let process = self.processes.get_mut(&gone.process);
        if let Some((start, len)) = process.and_then(|process| process.modules.remove(&gone.module)) {
            self.walker.unmap(gone, start, len);
        }
    }

    /// Looks at all threads once.
    fn look(&mut self) {
        self.looks = self.looks.wrapping_add(1);
        let living = self.processes.iter().filter(|(_, process)| !process.is_over);
        let ids: Vec<u32> = living.map(|(&id, _)| id).collect();
        for id in ids {
            if !self.look_at(id) {
                self.leave(id);
            }
        }
    }

    /// Looks at the threads of a process. False if there are none any more.
    fn look_at(&mut self, id: u32) -> bool {
        let Some(process) = self.processes.get_mut(&id) else { return true };
        let mut found = Vec::new();
        if std::mem::take(&mut process.has_new_threads) || self.looks.is_multiple_of(SELDOM) {
            match meet(process) {
                Met::All => {}
                Met::NoFiles => self.no_files(id),
                Met::Nobody => return false,
            }
        }
        let Some(process) = self.processes.get_mut(&id) else { return true };
        let news = std::mem::take(&mut process.news);
        let Process { mem, threads, .. } = process;
        threads.retain(|&tid, thread| {
            let mut spells = Vec::new();
            let mut walk = |blocked| match mem {
                Some(mem) => self.walker.walk(id, clock::monotonic_ns(), blocked, mem),
                None => Stack { frames: Vec::new(), end: End::Unreadable },
            };
            let look = thread.look(news, &mut clock::monotonic_ns, &mut walk, &mut spells);
            found.extend(spells.into_iter().map(|spell| (tid, spell)));
            look == Look::Lives
        });
        found.into_iter().for_each(|(tid, spell)| self.tell(id, tid, spell));
        true
    }

    /// Looks no more at a process.
    fn leave(&mut self, id: u32) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let mut found = Vec::new();
        for (&tid, thread) in &mut process.threads {
            let mut spells = Vec::new();
            thread.close(&mut spells);
            found.extend(spells.into_iter().map(|spell| (tid, spell)));
        }
        found.into_iter().for_each(|(tid, spell)| self.tell(id, tid, spell));
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.threads.clear();
        process.is_over = true;
        // The numbers of its last threads may still come.
        if process.unnumbered.is_empty() {
            self.processes.remove(&id);
        }
    }

    /// Tells once that there are too many threads for us.
    fn no_files(&mut self, process: u32) {
        if !std::mem::replace(&mut self.lacks_files, true) {
            let value =
                "some threads are not looked at: each takes two open files of the recorder (ulimit -Hn)"
                    .into();
            let _ = self.finds.send(Event::Setting(Setting { process, key: TOPIC.into(), value }));
        }
    }

    fn end(&mut self) {
        self.look();
        let ids: Vec<u32> = self.processes.keys().copied().collect();
        ids.into_iter().for_each(|id| self.leave(id));
        for (_, process) in std::mem::take(&mut self.processes) {
            // Threads that no agent has told of: below a number that it gives to nobody.
            let unnumbered = process.unnumbered.into_values().flatten();
            unnumbered.for_each(|sample| _ = self.finds.send(Event::Sample(sample)));
        }
    }

    /// Makes a sample of time that a thread of a process did not run.
    fn tell(&mut self, id: u32, tid: u32, spell: Spell) {
        let mark = match spell.wait {
            Wait::Ready => READY,
            Wait::Blocked(call) => call.unwrap_or(NO_CALL),
            Wait::Hidden => HIDDEN,
        };
        self.name(id, mark);
        let (frames, end) = match spell.stack {
            Some(stack) => (stack.frames.clone(), stack.end),
            // The last stack while it ran takes its place.
            None if spell.wait == Wait::Ready => (Vec::new(), End::Root),
            None => (Vec::new(), End::Unreadable),
        };
        let kernel = KernelSample {
            ns: spell.ns,
            weight: spell.us,
            event: 0,
            frames: vec![WALL_MARKS + u64::from(mark)],
        };
        let mut sample = Sample {
            process: id,
            tid,
            thread_seq: 1 << 31 | tid,
            ns: spell.ns,
            weight: spell.us,
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
                let _ = self.finds.send(Event::Sample(sample));
            }
            None => process.unnumbered.entry(tid).or_default().push(sample),
        }
    }

    /// Tells the name of a mark before its first sample; and once, where nobody may see what threads wait for.
    fn name(&mut self, process: u32, mark: u16) {
        if !self.told.insert(mark) {
            return;
        }
        let name = match mark {
            READY => "[ready]".into(),
            HIDDEN => "[blocked]".into(),
            call => blocked::name(call),
        };
        let start = WALL_MARKS + u64::from(mark);
        let symbol = KernelSymbol { start, end: start + 1, name: name.into(), module: String::new() };
        let _ = self.finds.send(Event::KernelSymbol(symbol));
        if mark == HIDDEN && !std::mem::replace(&mut self.has_complained, true) {
            let value = "where threads wait is hidden (/proc/PID/task/TID/syscall: the same user or root, a dumpable process, \
                         and with kernel.yama.ptrace_scope 1 a command started by record); their time is counted all the same"
                .into();
            let _ = self.finds.send(Event::Setting(Setting { process, key: TOPIC.into(), value }));
        }
    }
}

/// What came of looking for threads.
enum Met {
    All,
    /// We may have no more files open.
    NoFiles,
    /// The process has ended.
    Nobody,
}

/// Finds the threads that are new.
fn meet(process: &mut Process) -> Met {
    let Ok(tids) = proc::threads(process.pid) else { return Met::Nobody };
    let mut met = Met::All;
    for tid in tids {
        if process.threads.contains_key(&tid) {
            continue;
        }
        let now = clock::monotonic_ns();
        let told = process.numbers.get(&tid).map(|&(_, start)| start);
        // The first thread is there from the start, others since now at the latest.
        let began = told.unwrap_or(if tid == process.pid { process.began_ns } else { now }).min(now);
        match Thread::open(process.pid, tid, began, now) {
            Ok(thread) => drop(process.threads.insert(tid, thread)),
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => met = Met::NoFiles,
            // It has ended.
            Err(_) => {}
        }
    }
    met
}
