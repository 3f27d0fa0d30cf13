//! The process images of a file. The events of each are emitted when the first sample needs it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::PathBuf;

use offline::{Binary, Mapping};
use selfwind_profile::profile_file::{
    Cause, Counters, Event, FileIdentity, ModuleInfo, ProcessEnd, ProcessFate, ProcessInfo, Segment,
    ThreadInfo, ThreadName,
};

/// ELF `p_flags` of code: readable, executable.
const CODE: u32 = 5;
/// What a loss is called in the profile.
const LOST: &str = "perf-buffer-full";

/// A process from its start, or from an exec, to its end or the next exec.
#[derive(Default)]
pub(crate) struct Image {
    /// Its number in the profile; `None` until its first event.
    number: Option<u32>,
    pub(crate) ppid: u32,
    /// The number of the image that it was forked or executed from.
    pub(crate) parent: Option<u32>,
    pub(crate) start_ns: u64,
    pub(crate) exe: PathBuf,
    names: HashMap<u32, String>,
    /// Numbers of the threads with samples, and of those that ended.
    threads: HashMap<u32, u32>,
    next_thread: u32,
    /// Numbers of modules by mapping and first address, and the mappings that have one.
    modules: HashMap<(u64, u64, u64), u32>,
    mappings: HashSet<u64>,
    pub(crate) counters: Counters,
}

/// What all images of a profile share.
pub(crate) struct Common {
    pub(crate) period_ns: u64,
    /// The next image's number.
    pub(crate) next: u32,
}

impl Image {
    /// The image that a fork or exec creates from this one.
    pub(crate) fn successor(&self, pid: u32, start_ns: u64) -> Self {
        let names = self.names.get(&pid).map(|name| (pid, name.clone())).into_iter().collect();
        Self { parent: self.number, start_ns, names, ..Self::default() }
    }

    /// Its number. Emits its start first.
    pub(crate) fn number(&mut self, pid: u32, common: &mut Common, events: &mut Vec<Event>) -> u32 {
        if let Some(number) = self.number {
            return number;
        }
        let id = common.next;
        common.next += 1;
        self.number = Some(id);
        events.push(Event::Process(ProcessInfo {
            id,
            pid,
            ppid: self.ppid,
            parent: self.parent,
            start_ns: self.start_ns,
            period_ns: common.period_ns,
            source: "perf".into(),
            exe: self.exe.clone(),
            argv: self.names.get(&pid).cloned().into_iter().collect(),
            ..ProcessInfo::default()
        }));
        id
    }

    /// The number of a thread. Emits its start first.
    pub(crate) fn thread(&mut self, process: u32, tid: u32, ns: u64, events: &mut Vec<Event>) -> u32 {
        if let Some(&seq) = self.threads.get(&tid) {
            return seq;
        }
        let seq = self.next_thread;
        self.next_thread += 1;
        self.threads.insert(tid, seq);
        let name = self.names.get(&tid).cloned().unwrap_or_default();
        events.push(Event::Thread(ThreadInfo { process, tid, seq, name, start_ns: ns }));
        seq
    }

    /// A thread starts. Another one may have had its thread id.
    pub(crate) fn new_thread(&mut self, tid: u32, parent: u32) {
        self.threads.remove(&tid);
        if let Some(name) = self.names.get(&parent).cloned() {
            self.names.insert(tid, name);
        }
    }

    pub(crate) fn rename(&mut self, tid: u32, name: String, ns: u64, events: &mut Vec<Event>) {
        if let (Some(process), Some(&seq)) = (self.number, self.threads.get(&tid)) {
            events.push(Event::ThreadName(ThreadName { process, tid, seq, name: name.clone(), ns }));
        }
        self.names.insert(tid, name);
    }

    /// Emits the mapping that contains a frame, unless that was done.
    pub(crate) fn module(&mut self, process: u32, mapping: &Mapping<'_>, ns: u64, events: &mut Vec<Event>) {
        let Some(binary) = mapping.binary else { return };
        let &Mapping { start, end, offset, since_ns, id, .. } = mapping;
        let next = self.modules.len() as u32;
        let module = *self.modules.entry((id, start, end)).or_insert(next);
        if module != next {
            return;
        }
        // The rest of a mapping that was emitted before is mapped from now on.
        let is_rest = !self.mappings.insert(id);
        events.push(Event::Module(ModuleInfo {
            process,
            module,
            start,
            end,
            bias: mapping.bias(),
            path: binary.path().to_owned(),
            build_id: binary.build_id().to_vec(),
            segments: vec![Segment { address: start, len: end - start, pgoff: offset, flags: CODE }],
            loaded_ns: if is_rest { ns } else { since_ns },
            file: identity(binary),
        }));
    }

    /// Emits a loss of samples.
    pub(crate) fn lose(&mut self, count: u64) {
        let counters = &mut self.counters;
        counters.fired = counters.fired.saturating_add(count);
        counters.fired_weight = counters.fired_weight.saturating_add(count);
        match counters.lost.first_mut() {
            Some(cause) => {
                cause.count = cause.count.saturating_add(count);
                cause.weight = cause.weight.saturating_add(count);
            }
            None => counters.lost.push(Cause { name: LOST.into(), count, weight: count }),
        }
    }

    /// Emits its end, if its start was emitted.
    pub(crate) fn end(self, ns: u64, fate: ProcessFate) -> Option<Event> {
        let process = self.number?;
        Some(Event::ProcessEnd(ProcessEnd { process, ns, fate, counters: self.counters }))
    }
}

/// Identity of a file without a build-id.
fn identity(binary: &Binary) -> Option<FileIdentity> {
    let unknown = binary.build_id().is_empty().then(|| fs::metadata(binary.path()).ok()).flatten();
    unknown.map(|metadata| FileIdentity::of(&metadata))
}
