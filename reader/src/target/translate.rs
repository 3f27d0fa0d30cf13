//! Translates records of a region to events of a profile: ticks to nanoseconds, region numbers to profile-local ones. Nothing here
//! accesses shared memory; the records have been parsed strictly, and are used only as names, times and addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use selfwind_profile::interpreted;
use selfwind_profile::profile_file::{
    Cause, Counters, Event, InterpretedFunction, ModuleGone, ModuleInfo, NanosBucket, ProcessFate,
    ProcessInfo, Sample, Segment, Setting, ThreadEnd, ThreadInfo, ThreadName,
};
use selfwind_profile::tracepoint::{EventFields, Tracepoint};
use shm_format::injection::Call;
use shm_format::{
    Anchor, CountersSnapshot, DurableRecord, Identity, Loss, Scale, Skip, StackHead, TracepointRecord,
    bucket_range, record,
};

/// How many of the latest anchors of a region to keep: the first and the last determine the scale.
const ANCHORS_KEPT: usize = 4;

/// Translates the records of one process image.
pub(crate) struct Translator {
    id: u32,
    identity: Identity,
    /// The image of the same process that executed this one.
    previous: Option<u32>,
    introduced: bool,
    /// Events that arrived before the Process record.
    held: Vec<Event>,
    anchors: Vec<Anchor>,
    exit: Option<ProcessFate>,
    threads: BTreeMap<u32, KnownThread>,
    /// Numbers of the tracepoints described so far.
    tracepoints: BTreeSet<u32>,
    /// An event referred to another tracepoint.
    misses_tracepoint: bool,
}

struct KnownThread {
    tid: u32,
    name: String,
    /// It has had a sample since its name was last read.
    active: bool,
    /// Its Thread event was emitted.
    told: bool,
}

impl Translator {
    /// For the image with this number in the profile.
    pub(crate) fn new(id: u32, identity: Identity, previous: Option<u32>) -> Self {
        Self {
            id,
            identity,
            previous,
            introduced: false,
            held: Vec::new(),
            anchors: Vec::new(),
            exit: None,
            threads: BTreeMap::new(),
            tracepoints: BTreeSet::new(),
            misses_tracepoint: false,
        }
    }

    /// True once the Process event was emitted.
    pub(crate) fn is_introduced(&self) -> bool {
        self.introduced
    }

    /// The process's own readings of the clocks.
    pub(crate) fn anchors(&self) -> &[Anchor] {
        &self.anchors
    }

    /// How the process reported its end.
    pub(crate) fn exit(&self) -> Option<ProcessFate> {
        self.exit
    }

    /// Adds the events of a durable record to `out`. `numbers` maps nonces of regions to their numbers.
    pub(crate) fn durable(
        &mut self,
        record: &DurableRecord<'_>,
        scale: &Scale,
        numbers: &BTreeMap<u64, u32>,
        out: &mut Vec<Event>,
    ) {
        let ns = |ticks| scale.monotonic_ns(ticks);
        let process = self.id;
        let event = match record {
            DurableRecord::Process(info) => {
                let forked_from = numbers.get(&info.parent_nonce).filter(|_| info.parent_nonce != 0);
                let info =
                    process_info(process, info, ns(info.ticks), self.previous.or(forked_from.copied()));
                return self.introduce(info, out);
            }
            DurableRecord::Module(module) => Event::Module(module_info(process, module, ns(module.ticks))),
            DurableRecord::ModuleGone(gone) => {
                Event::ModuleGone(ModuleGone { process, module: gone.id, ns: ns(gone.ticks) })
            }
            DurableRecord::Thread(thread) => {
                let (tid, seq, name) = (thread.tid, thread.seq, text(thread.name));
                self.threads.insert(seq, KnownThread { tid, name: name.clone(), active: false, told: true });
                Event::Thread(ThreadInfo { process, tid, seq, name, start_ns: ns(thread.ticks) })
            }
            DurableRecord::ThreadName(thread) => {
                let name = text(thread.name);
                let Some(event) = self.rename(thread.tid, thread.seq, name, ns(thread.ticks)) else { return };
                event
            }
            DurableRecord::ThreadEnd(thread) => {
                let ns = ns(thread.ticks);
                let renamed = self.rename(thread.tid, thread.seq, text(thread.name), ns);
                self.threads.remove(&thread.seq);
                let held = if self.introduced { &mut *out } else { &mut self.held };
                held.extend(renamed);
                Event::ThreadEnd(ThreadEnd { process, tid: thread.tid, seq: thread.seq, ns })
            }
            DurableRecord::Exec(_) => {
                // The exec may still fail, which a later Exit record or further samples will show.
                self.exit = Some(ProcessFate::Executed);
                return;
            }
            DurableRecord::Exit(_) => {
                self.exit = Some(ProcessFate::Exited);
                return;
            }
            DurableRecord::Anchor(anchor) => {
                if self.anchors.len() == ANCHORS_KEPT {
                    self.anchors.remove(0);
                }
                self.anchors.push(*anchor);
                return;
            }
            DurableRecord::Tracepoint(tracepoint) => {
                self.tracepoints.insert(tracepoint.id);
                Event::Tracepoint(tracepoint_info(process, tracepoint))
            }
            DurableRecord::Function(function) => Event::Function(interpreted_function(process, function)),
            // Settings for later injections are internal, and the sources are already in the session.
            DurableRecord::Setting(setting)
                if [Call::SETTING, record::Setting::PROBES].contains(&setting.key) =>
            {
                return;
            }
            DurableRecord::Setting(setting) => {
                Event::Setting(Setting { process, key: text(setting.key), value: text(setting.value) })
            }
            _ => return,
        };
        if self.introduced { out.push(event) } else { self.held.push(event) }
    }

    /// Emits a Process event for a process that died before it wrote a Process record, so that its samples count.
    pub(crate) fn introduce_unknown(&mut self, ns: u64, out: &mut Vec<Event>) {
        let info = ProcessInfo {
            id: self.id,
            pid: self.identity.pid,
            uid: self.identity.uid,
            parent: self.previous,
            start_ns: ns,
            ..ProcessInfo::default()
        };
        self.introduce(info, out);
    }

    fn introduce(&mut self, info: ProcessInfo, out: &mut Vec<Event>) {
        if !std::mem::replace(&mut self.introduced, true) {
            out.push(Event::Process(info));
            out.append(&mut self.held);
        }
    }

    /// The event for a name, if it has changed.
    fn rename(&mut self, tid: u32, seq: u32, name: String, ns: u64) -> Option<Event> {
        let known = self.threads.get_mut(&seq)?;
        if name.is_empty() || known.name == name {
            return None;
        }
        known.name.clone_from(&name);
        Some(Event::ThreadName(ThreadName { process: self.id, tid, seq, name, ns }))
    }

    /// Reads the current names of threads that have run, with `name_of(tid)`.
    pub(crate) fn refresh_names(
        &mut self,
        ns: u64,
        name_of: impl Fn(u32) -> Option<String>,
        out: &mut Vec<Event>,
    ) {
        let active: Vec<(u32, u32)> = self
            .threads
            .iter_mut()
            .filter_map(|(&seq, thread)| std::mem::take(&mut thread.active).then_some((seq, thread.tid)))
            .collect();
        for (seq, tid) in active {
            let Some(name) = name_of(tid) else { continue };
            let known = self.threads.get_mut(&seq).filter(|thread| !thread.told);
            if let Some(known) = known {
                (known.name, known.told) = (name.clone(), true);
                out.push(Event::Thread(ThreadInfo { process: self.id, tid, seq, name, start_ns: ns }));
            } else {
                out.extend(self.rename(tid, seq, name, ns));
            }
        }
    }

    /// The fields of a tracepoint event.
    pub(crate) fn fields(&mut self, event: &TracepointRecord<'_>) -> EventFields {
        self.misses_tracepoint |= !self.tracepoints.contains(&event.id);
        EventFields { tracepoint: event.id, values: event.fields().map(Into::into).collect() }
    }

    /// True once after an event of an unknown tracepoint: its description was written after the durable log was last read.
    pub(crate) fn take_missing(&mut self) -> bool {
        std::mem::take(&mut self.misses_tracepoint)
    }

    /// Notes that a thread has had a sample.
    pub(crate) fn ran(&mut self, tid: u32, thread_seq: u32) {
        // An unregistered thread gets its name from the kernel.
        let unknown = || KnownThread { tid, name: String::new(), active: true, told: false };
        self.threads.entry(thread_seq).or_insert_with(unknown).active = true;
    }

    /// A sample without its frames, with the thread it was taken on.
    pub(crate) fn sample(&self, tid: u32, thread_seq: u32, ns: u64, head: StackHead) -> Sample {
        Sample {
            process: self.id,
            tid,
            thread_seq,
            ns,
            weight: head.weight,
            end: head.end,
            source: head.source,
            nonce: head.nonce,
            ..Sample::default()
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// The name of a source number.
pub(super) fn source_name(source: u32) -> String {
    match source {
        1 => "itimer".into(),
        2 => "cpu".into(),
        3 => "perf".into(),
        4 => "alloc".into(),
        5 => "tp".into(),
        7 => "lock".into(),
        8 => "mmap".into(),
        other => format!("source_{other}"),
    }
}

fn process_info(id: u32, info: &record::Process<'_>, start_ns: u64, parent: Option<u32>) -> ProcessInfo {
    let argv = info.argv.strip_suffix(b"\0").unwrap_or(info.argv);
    ProcessInfo {
        id,
        pid: info.pid,
        ppid: info.ppid,
        parent,
        start_ns,
        uid: info.uid,
        period_ns: info.period_ns,
        source: source_name(info.source),
        exe: path(info.exe),
        argv: if argv.is_empty() { Vec::new() } else { argv.split(|&byte| byte == 0).map(text).collect() },
        note: text(info.note),
    }
}

fn tracepoint_info(process: u32, tracepoint: &record::Tracepoint<'_>) -> Tracepoint {
    let names = tracepoint.fields.strip_suffix(b"\0").unwrap_or(tracepoint.fields);
    Tracepoint {
        process,
        id: tracepoint.id,
        provider: text(tracepoint.provider),
        name: text(tracepoint.name),
        fields: if names.is_empty() {
            Vec::new()
        } else {
            names.split(|&byte| byte == 0).map(text).collect()
        },
    }
}

fn interpreted_function(process: u32, function: &record::Function<'_>) -> InterpretedFunction {
    InterpretedFunction {
        process,
        id: function.id,
        language: function.language,
        first_line: function.first_line,
        lines_form: function.lines_form,
        name: interpreted::text(function.name, function.name_width),
        file: interpreted::text(function.file, function.file_width),
        lines: function.lines.to_vec(),
    }
}

fn module_info(process: u32, module: &record::Module<'_>, loaded_ns: u64) -> ModuleInfo {
    ModuleInfo {
        process,
        module: module.id,
        start: module.start,
        end: module.end,
        bias: module.bias,
        path: if module.path.is_empty() { PathBuf::from("[vdso]") } else { path(module.path) },
        build_id: module.build_id.to_vec(),
        segments: module
            .segments
            .iter()
            .map(|s| Segment { address: s.address, len: s.len, pgoff: s.page_offset, flags: s.flags })
            .collect(),
        loaded_ns,
        file: None,
    }
}

/// Converts the counters of a region to those of a profile; those counted by the reader are left at zero.
pub(crate) fn counters(counters: &CountersSnapshot, scale: &Scale) -> Counters {
    let lost = Loss::ALL.iter().map(|&cause| (cause.name(), counters.lost(cause)));
    let skipped = Skip::ALL.iter().map(|&cause| (cause.name(), counters.skipped(cause)));
    let handler = counters.handler_time.iter().enumerate().filter(|(_, count)| **count > 0);
    Counters {
        fired: counters.fired.count,
        fired_weight: counters.fired.weight,
        recorded: counters.recorded.count,
        recorded_weight: counters.recorded.weight,
        truncated: counters.truncated,
        lost: causes(lost),
        skipped: causes(skipped),
        handler: handler
            .map(|(bucket, &count)| {
                let (first, last) = bucket_range(bucket);
                NanosBucket { low: scale.span_ns(first), high: scale.span_ns(last), count }
            })
            .collect(),
        threads_started: counters.threads_started,
        threads_ended: counters.threads_ended,
        ..Counters::default()
    }
}

fn causes(causes: impl Iterator<Item = (&'static str, shm_format::TallySnapshot)>) -> Vec<Cause> {
    causes
        .filter(|(_, tally)| tally.count > 0)
        .map(|(name, tally)| Cause { name: name.into(), count: tally.count, weight: tally.weight })
        .collect()
}
