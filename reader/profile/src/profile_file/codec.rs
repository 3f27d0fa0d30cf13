//! Encodes and decodes events. An event is a tag, the length of its body, and the body. A reader skips unknown tags, and ignores
//! bytes after the fields it knows.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::comparison;
use super::event::*;
use super::fields::{Fields, INTEGER_MOST, Malformed, Put, PutText, Room};
use super::in_use::{
    LIVE_BLOCKS, LIVE_MAPPINGS, live_blocks, live_mappings, put_live_blocks, put_live_mappings,
};
use super::known_modules::KnownModules;
use super::sample_codec::{PreviousSample, put_sample, sample};
use super::sample_ref::SampleRef;
use super::tracepoint_codec::{EVENT, TRACEPOINT, event_fields, put_fields, put_tracepoint, tracepoint};

const SESSION: u8 = 1;
const PROCESS: u8 = 2;
const MODULE: u8 = 3;
const MODULE_GONE: u8 = 4;
const THREAD: u8 = 5;
const THREAD_NAME: u8 = 6;
const THREAD_END: u8 = 7;
const SAMPLE: u8 = 8;
const COUNTERS: u8 = 9;
const PROCESS_END: u8 = 10;
const END: u8 = 11;
const GENERATED: u8 = 17;
const FUNCTION: u8 = 18;
const KERNEL_SYMBOL: u8 = 12;
const SETTING: u8 = 13;
const MODULE_AGAIN: u8 = 14;
const COMPARISON: u8 = 19;

/// What events are encoded relative to: the previous sample in the same block, and the modules written so far.
#[derive(Default)]
pub(super) struct Previous {
    pub(super) sample: PreviousSample,
    /// These stay from block to block.
    pub(super) modules: KnownModules,
    /// Skip samples.
    pub(super) without_samples: bool,
}

impl Previous {
    pub(super) fn reset(&mut self) {
        self.sample.reset();
    }
}

/// Appends `event` to `out`.
pub(super) fn encode(event: &Event, previous: &mut Previous, out: &mut Vec<u8>) {
    put_event(out, |body| match event {
        Event::Session(v) => put_session(v, body),
        Event::Process(v) => put_process(v, body),
        Event::Module(v) => match previous.modules.number_of(v) {
            None => put_module(v, body),
            Some(number) => put_module_again(v, number, body),
        },
        Event::ModuleGone(v) => {
            body.put_u32(v.process);
            body.put_u32(v.module);
            body.put_u64(v.ns);
            MODULE_GONE
        }
        Event::Thread(v) => {
            put_thread(v.process, v.tid, v.seq, v.start_ns, body);
            body.put_bytes(v.name.as_bytes());
            THREAD
        }
        Event::ThreadName(v) => {
            put_thread(v.process, v.tid, v.seq, v.ns, body);
            body.put_bytes(v.name.as_bytes());
            THREAD_NAME
        }
        Event::ThreadEnd(v) => {
            put_thread(v.process, v.tid, v.seq, v.ns, body);
            THREAD_END
        }
        Event::Sample(v) => {
            let frames: Vec<u64> = v.frames.iter().rev().copied().collect();
            put_sample_event(SampleRef { sample: v, frames: &frames, shared: 0 }, previous, body).0
        }
        Event::KernelSymbol(v) => {
            body.put_u64(v.start);
            body.put_u64(v.end);
            body.put_bytes(v.name.as_bytes());
            body.put_bytes(v.module.as_bytes());
            KERNEL_SYMBOL
        }
        Event::Setting(v) => {
            body.put_u32(v.process);
            body.put_bytes(v.key.as_bytes());
            body.put_bytes(v.value.as_bytes());
            SETTING
        }
        Event::Counters(v) => {
            body.put_u32(v.process);
            body.put_u64(v.ns);
            put_counters(&v.counters, body);
            COUNTERS
        }
        Event::ProcessEnd(v) => {
            body.put_u32(v.process);
            body.put_u64(v.ns);
            body.push(v.fate as u8);
            put_counters(&v.counters, body);
            PROCESS_END
        }
        Event::Generated(v) => put_generated(v, body),
        Event::LiveBlocks(v) => put_live_blocks(v, body),
        Event::LiveMappings(v) => put_live_mappings(v, body),
        Event::Function(v) => put_function(v, body),
        Event::Tracepoint(v) => put_tracepoint(v, body),
        Event::Comparison(v) => {
            comparison::put(v, body);
            COMPARISON
        }
        Event::End(v) => {
            body.put_u64(v.ns);
            body.put_u64(v.wall_ns);
            body.put_u64(v.status.map_or(0, |status| 1 + u64::from(status as u32)));
            END
        }
    });
}

/// Appends a sample to `out`. Returns how many of its frames, from the root, were shared with the previous sample.
pub(super) fn encode_sample(sample_ref: SampleRef<'_>, previous: &mut Previous, out: &mut Vec<u8>) -> usize {
    let mut shared = 0;
    put_event(out, |body| {
        let (tag, known) = put_sample_event(sample_ref, previous, body);
        shared = known;
        tag
    });
    shared
}

/// Appends the body of a sample to `body`. Returns its tag, and how many of its frames were shared with the previous sample.
fn put_sample_event(sample_ref: SampleRef<'_>, previous: &mut Previous, body: &mut Vec<u8>) -> (u8, usize) {
    let tag = sample_ref.sample.fields.as_ref().map_or(SAMPLE, |fields| put_fields(fields, body));
    (tag, put_sample(sample_ref, &mut previous.sample, body))
}

/// Appends an event: `put_body` appends the body and returns the tag.
#[inline]
fn put_event(out: &mut Vec<u8>, put_body: impl FnOnce(&mut Vec<u8>) -> u8) {
    let start = out.len();
    // Tag and length: most bodies are shorter than 128 bytes.
    out.extend_from_slice(&[0, 0]);
    let tag = put_body(out);
    let len = out.len() - start - 2;
    out[start] = tag;
    if len < 0x80 {
        out[start + 1] = len as u8;
        return;
    }
    let mut bytes = [0; INTEGER_MOST];
    let mut room = Room { bytes: &mut bytes, len: 0 };
    room.put_u64(len as u64);
    let len = room.len;
    out.splice(start + 1..start + 2, bytes.into_iter().take(len));
}

/// A decoded event.
pub(super) enum Decoded {
    /// A sample without its frames, which are in [`PreviousSample`], and how many of them are shared with the previous sample.
    Sample(Sample, usize),
    Other(Event),
}

/// Decodes the next event; `None` for an unknown tag of a later version, and for skipped samples.
pub(super) fn decode(fields: &mut Fields<'_>, previous: &mut Previous) -> Result<Option<Decoded>, Malformed> {
    let tag = fields.byte()?;
    let len = usize::try_from(fields.u64()?).map_err(|_| "an event is too long")?;
    let f = &mut Fields(fields.take(len)?);
    if tag == SAMPLE || tag == EVENT {
        if previous.without_samples {
            return Ok(None);
        }
        let fields = if tag == EVENT { Some(Box::new(event_fields(f)?)) } else { None };
        let (sample, shared) = sample(f, &mut previous.sample)?;
        return Ok(Some(Decoded::Sample(Sample { fields, ..sample }, shared)));
    }
    Ok(Some(Decoded::Other(match tag {
        SESSION => Event::Session(session(f)?),
        PROCESS => Event::Process(process(f)?),
        MODULE => {
            let module = module(f)?;
            previous.modules.tell(&module);
            Event::Module(module)
        }
        MODULE_AGAIN => Event::Module(module_again(f, &previous.modules)?),
        MODULE_GONE => Event::ModuleGone(ModuleGone { process: f.u32()?, module: f.u32()?, ns: f.u64()? }),
        THREAD => {
            let (process, tid, seq, start_ns) = thread(f)?;
            Event::Thread(ThreadInfo { process, tid, seq, start_ns, name: f.string()? })
        }
        THREAD_NAME => {
            let (process, tid, seq, ns) = thread(f)?;
            Event::ThreadName(ThreadName { process, tid, seq, ns, name: f.string()? })
        }
        THREAD_END => {
            let (process, tid, seq, ns) = thread(f)?;
            Event::ThreadEnd(ThreadEnd { process, tid, seq, ns })
        }
        KERNEL_SYMBOL => Event::KernelSymbol(KernelSymbol {
            start: f.u64()?,
            end: f.u64()?,
            name: f.string()?,
            module: f.string()?,
        }),
        SETTING => Event::Setting(Setting { process: f.u32()?, key: f.string()?, value: f.string()? }),
        COUNTERS => Event::Counters(CountersAt { process: f.u32()?, ns: f.u64()?, counters: counters(f)? }),
        PROCESS_END => Event::ProcessEnd(ProcessEnd {
            process: f.u32()?,
            ns: f.u64()?,
            fate: fate(f.byte()?)?,
            counters: counters(f)?,
        }),
        GENERATED => Event::Generated(generated(f)?),
        LIVE_BLOCKS => Event::LiveBlocks(live_blocks(f)?),
        LIVE_MAPPINGS => Event::LiveMappings(live_mappings(f)?),
        FUNCTION => Event::Function(function(f)?),
        TRACEPOINT => Event::Tracepoint(tracepoint(f)?),
        COMPARISON => Event::Comparison(comparison::take(f)?),
        END => Event::End(End { ns: f.u64()?, wall_ns: f.u64()?, status: status(f.u64()?)? }),
        _ => return Ok(None),
    })))
}

fn put_session(v: &SessionInfo, body: &mut Vec<u8>) -> u8 {
    body.put_bytes(v.version.as_bytes());
    body.put_bytes(v.host.as_bytes());
    body.put_bytes(v.kernel.as_bytes());
    body.put_u64(v.started_realtime_ns);
    body.put_u64(v.started_ns);
    body.put_strings(&v.command);
    body.put_u32(v.frequency);
    body.put_bytes(v.source.as_bytes());
    SESSION
}

fn session(f: &mut Fields<'_>) -> Result<SessionInfo, Malformed> {
    Ok(SessionInfo {
        version: f.string()?,
        host: f.string()?,
        kernel: f.string()?,
        started_realtime_ns: f.u64()?,
        started_ns: f.u64()?,
        command: f.list(Fields::string)?,
        frequency: f.u32()?,
        source: f.string()?,
    })
}

fn put_process(v: &ProcessInfo, body: &mut Vec<u8>) -> u8 {
    body.put_u32(v.id);
    body.put_u32(v.pid);
    body.put_u32(v.ppid);
    body.put_u64(v.parent.map_or(0, |parent| 1 + u64::from(parent)));
    body.put_u64(v.start_ns);
    body.put_u32(v.uid);
    body.put_u64(v.period_ns);
    body.put_bytes(v.source.as_bytes());
    put_path(&v.exe, body);
    body.put_strings(&v.argv);
    body.put_bytes(v.note.as_bytes());
    PROCESS
}

fn process(f: &mut Fields<'_>) -> Result<ProcessInfo, Malformed> {
    Ok(ProcessInfo {
        id: f.u32()?,
        pid: f.u32()?,
        ppid: f.u32()?,
        parent: match f.u64()? {
            0 => None,
            more => Some(u32::try_from(more - 1).map_err(|_| "a process number is out of range")?),
        },
        start_ns: f.u64()?,
        uid: f.u32()?,
        period_ns: f.u64()?,
        source: f.string()?,
        exe: path(f)?,
        argv: f.list(Fields::string)?,
        note: f.string()?,
    })
}

fn put_module(v: &ModuleInfo, body: &mut Vec<u8>) -> u8 {
    body.put_u32(v.process);
    body.put_u32(v.module);
    body.put_u64(v.start);
    body.put_u64(v.end);
    body.put_u64(v.bias);
    put_path(&v.path, body);
    body.put_bytes(&v.build_id);
    body.put_u64(v.segments.len() as u64);
    for segment in &v.segments {
        body.put_u64(segment.address);
        body.put_u64(segment.len);
        body.put_u64(segment.pgoff);
        body.put_u32(segment.flags);
    }
    body.put_u64(v.loaded_ns);
    if let Some(file) = &v.file {
        body.put_u64(file.len);
        body.put_i64(file.modified_ns);
        body.put_u64(file.inode);
    }
    MODULE
}

fn module(f: &mut Fields<'_>) -> Result<ModuleInfo, Malformed> {
    Ok(ModuleInfo {
        process: f.u32()?,
        module: f.u32()?,
        start: f.u64()?,
        end: f.u64()?,
        bias: f.u64()?,
        path: path(f)?,
        build_id: f.bytes()?.to_vec(),
        segments: f
            .list(|f| Ok(Segment { address: f.u64()?, len: f.u64()?, pgoff: f.u64()?, flags: f.u32()? }))?,
        loaded_ns: f.u64()?,
        file: if f.0.is_empty() { None } else { Some(file(f)?) },
    })
}

/// A module that was written before, for another process or at another address.
fn put_module_again(v: &ModuleInfo, number: u32, body: &mut Vec<u8>) -> u8 {
    body.put_u32(v.process);
    body.put_u32(v.module);
    body.put_u32(number);
    body.put_u64(v.start);
    body.put_u64(v.loaded_ns);
    MODULE_AGAIN
}

fn module_again(f: &mut Fields<'_>, modules: &KnownModules) -> Result<ModuleInfo, Malformed> {
    let (process, module, number, start) = (f.u32()?, f.u32()?, f.u32()?, f.u64()?);
    let known = modules.again(number, start).ok_or("a module that was not told before")?;
    Ok(ModuleInfo { process, module, loaded_ns: f.u64()?, ..known })
}

fn file(f: &mut Fields<'_>) -> Result<FileIdentity, Malformed> {
    Ok(FileIdentity { len: f.u64()?, modified_ns: f.i64()?, inode: f.u64()? })
}

fn put_generated(v: &GeneratedCode, body: &mut Vec<u8>) -> u8 {
    body.put_u32(v.process);
    put_path(&v.source, body);
    body.put_u64(v.functions.len() as u64);
    for function in &v.functions {
        body.put_u64(function.since_ns);
        body.put_u64(function.start);
        body.put_u64(function.len);
        body.put_bytes(function.name.as_bytes());
    }
    GENERATED
}

fn generated(f: &mut Fields<'_>) -> Result<GeneratedCode, Malformed> {
    fn function(f: &mut Fields<'_>) -> Result<GeneratedFunction, Malformed> {
        Ok(GeneratedFunction { since_ns: f.u64()?, start: f.u64()?, len: f.u64()?, name: f.string()? })
    }
    Ok(GeneratedCode { process: f.u32()?, source: path(f)?, functions: f.list(function)? })
}

fn put_function(v: &InterpretedFunction, body: &mut Vec<u8>) -> u8 {
    for number in [v.process, v.id, v.language, v.first_line, v.lines_form] {
        body.put_u32(number);
    }
    body.put_bytes(v.name.as_bytes());
    body.put_bytes(v.file.as_bytes());
    body.put_bytes(&v.lines);
    FUNCTION
}

fn function(f: &mut Fields<'_>) -> Result<InterpretedFunction, Malformed> {
    Ok(InterpretedFunction {
        process: f.u32()?,
        id: f.u32()?,
        language: f.u32()?,
        first_line: f.u32()?,
        lines_form: f.u32()?,
        name: f.string()?,
        file: f.string()?,
        lines: f.bytes()?.to_vec(),
    })
}

fn put_thread(process: u32, tid: u32, seq: u32, ns: u64, body: &mut Vec<u8>) {
    body.put_u32(process);
    body.put_u32(tid);
    body.put_u32(seq);
    body.put_u64(ns);
}

fn thread(f: &mut Fields<'_>) -> Result<(u32, u32, u32, u64), Malformed> {
    Ok((f.u32()?, f.u32()?, f.u32()?, f.u64()?))
}

fn put_causes(causes: &[Cause], body: &mut Vec<u8>) {
    body.put_u64(causes.len() as u64);
    for cause in causes {
        body.put_bytes(cause.name.as_bytes());
        body.put_u64(cause.count);
        body.put_u64(cause.weight);
    }
}

fn put_counters(v: &Counters, body: &mut Vec<u8>) {
    for value in [v.fired, v.fired_weight, v.recorded, v.recorded_weight, v.truncated] {
        body.put_u64(value);
    }
    put_causes(&v.lost, body);
    put_causes(&v.skipped, body);
    body.put_u64(v.handler.len() as u64);
    for bucket in &v.handler {
        body.put_u64(bucket.low);
        body.put_u64(bucket.high);
        body.put_u64(bucket.count);
    }
    for value in [v.threads_started, v.threads_ended, v.drained, v.ring_bytes] {
        body.put_u64(value);
    }
    for value in [v.gaps, v.torn, v.violations, v.earlier, v.earlier_weight, v.undecodable] {
        body.put_u64(value);
    }
    put_causes(&v.kernel, body);
}

fn counters(f: &mut Fields<'_>) -> Result<Counters, Malformed> {
    fn cause(f: &mut Fields<'_>) -> Result<Cause, Malformed> {
        Ok(Cause { name: f.string()?, count: f.u64()?, weight: f.u64()? })
    }
    Ok(Counters {
        fired: f.u64()?,
        fired_weight: f.u64()?,
        recorded: f.u64()?,
        recorded_weight: f.u64()?,
        truncated: f.u64()?,
        lost: f.list(cause)?,
        skipped: f.list(cause)?,
        handler: f.list(|f| Ok(NanosBucket { low: f.u64()?, high: f.u64()?, count: f.u64()? }))?,
        threads_started: f.u64()?,
        threads_ended: f.u64()?,
        drained: f.u64()?,
        ring_bytes: f.u64()?,
        gaps: f.u64()?,
        torn: f.u64()?,
        violations: f.u64()?,
        earlier: f.u64()?,
        earlier_weight: f.u64()?,
        // Older files end here.
        undecodable: if f.0.is_empty() { 0 } else { f.u64()? },
        // Files from before kernel events end here.
        kernel: if f.0.is_empty() { Vec::new() } else { f.list(cause)? },
    })
}

pub(super) fn put_path(path: &Path, body: &mut Vec<u8>) {
    body.put_bytes(path.as_os_str().as_bytes());
}

pub(super) fn path(f: &mut Fields<'_>) -> Result<PathBuf, Malformed> {
    Ok(PathBuf::from(OsStr::from_bytes(f.bytes()?)))
}

fn fate(byte: u8) -> Result<ProcessFate, Malformed> {
    Ok(match byte {
        0 => ProcessFate::Exited,
        1 => ProcessFate::Executed,
        2 => ProcessFate::Vanished,
        3 => ProcessFate::Running,
        _ => return Err("an unknown end of a process"),
    })
}

fn status(value: u64) -> Result<Option<i32>, Malformed> {
    match value {
        0 => Ok(None),
        more => u32::try_from(more - 1)
            .map(|status| Some(status as i32))
            .map_err(|_| "an exit status is out of range"),
    }
}
