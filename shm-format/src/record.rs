//! The records: the contents of the durable log and the pool as typed values.
//!
//! Encoding never allocates. Parsing is strict (every byte accounted for, every number in range) and never panics: its
//! input comes from another process.

use crate::record_fields::{Fields, Fixed};

/// Kinds of records in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecordKind {
    /// A cancelled reservation; readers skip it.
    Void = 0,
    /// A stack sample: [`EncodedStack`](crate::EncodedStack).
    Stack = 1,
    /// Bytes of a perf ring that a stack answers: [`KernelAnswer`](crate::KernelAnswer).
    Answer = 3,
    /// Part of a stack copy: [`CopyPiece`](crate::CopyPiece).
    Copy = 4,
    /// An event of a tracepoint in the program: [`TracepointRecord`](crate::TracepointRecord).
    Tracepoint = 5,
    /// An allocation with a stack of the durable log: [`Repeat`](crate::Repeat).
    Repeat = 6,
}

impl RecordKind {
    /// The number in record headers, 5 bits.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The kind with this number, if this version knows it.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Void),
            1 => Some(Self::Stack),
            3 => Some(Self::Answer),
            4 => Some(Self::Copy),
            5 => Some(Self::Tracepoint),
            6 => Some(Self::Repeat),
            _ => None,
        }
    }
}

/// Kinds of durable records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum DurableKind {
    /// [`Process`].
    Process = 1,
    /// [`Module`].
    Module = 2,
    /// [`ModuleGone`].
    ModuleGone = 3,
    /// [`Thread`], when it is registered.
    Thread = 4,
    /// [`Thread`], after its name has changed.
    ThreadName = 5,
    /// [`Thread`], when it ends; follows the thread's last record in the pool.
    ThreadEnd = 6,
    /// [`Exec`].
    Exec = 7,
    /// [`Exit`].
    Exit = 8,
    /// [`Anchor`].
    Anchor = 9,
    /// [`Setting`].
    Setting = 10,
    /// [`KernelRing`].
    KernelRing = 11,
    /// [`Function`].
    Function = 12,
    /// [`Tracepoint`].
    Tracepoint = 13,
    /// [`RecurringStack`].
    RecurringStack = 14,
}

impl DurableKind {
    /// The kind with this number, if this version knows it.
    #[must_use]
    pub const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Process,
            2 => Self::Module,
            3 => Self::ModuleGone,
            4 => Self::Thread,
            5 => Self::ThreadName,
            6 => Self::ThreadEnd,
            7 => Self::Exec,
            8 => Self::Exit,
            9 => Self::Anchor,
            10 => Self::Setting,
            11 => Self::KernelRing,
            12 => Self::Function,
            13 => Self::Tracepoint,
            14 => Self::RecurringStack,
            _ => return None,
        })
    }
}

/// A process image and its recording settings. Times here and below are trace-clock ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process<'a> {
    /// When the agent started.
    pub ticks: u64,
    /// Process id.
    pub pid: u32,
    /// Parent process id.
    pub ppid: u32,
    /// Nonce of the region of the process that forked this one; 0 for none.
    pub parent_nonce: u64,
    /// Real user id.
    pub uid: u32,
    /// The sampling signal.
    pub signal: u32,
    /// Sampling period in nanoseconds.
    pub period_ns: u64,
    /// The source of samples.
    pub source: u32,
    /// Path of the executable.
    pub exe: &'a [u8],
    /// Arguments, each terminated by NUL; possibly truncated.
    pub argv: &'a [u8],
    /// Working directory.
    pub cwd: &'a [u8],
    /// A message for the user, for instance about a setting that could not be used.
    pub note: &'a [u8],
}

/// A loaded segment of a module, as in the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Segment {
    /// First address in memory.
    pub address: u64,
    /// Length in memory, bytes.
    pub len: u64,
    /// File offset of the first address.
    pub page_offset: u64,
    /// ELF segment flags: 1 execute, 2 write, 4 read.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// The segments of a module.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Segments<'a>(&'a [u8]);

const SEGMENT: usize = 32;
const _: () = assert!(size_of::<Segment>() == SEGMENT && align_of::<Segment>() == 8);

impl<'a> Segments<'a> {
    /// The segments to write.
    #[must_use]
    pub fn new(segments: &'a [Segment]) -> Self {
        // SAFETY: `Segment` is `repr(C)` and consists of integers without padding (its size is the sum of its fields),
        // so every byte is initialized. The length is that of the slice.
        Self(unsafe { core::slice::from_raw_parts(segments.as_ptr().cast(), size_of_val(segments)) })
    }

    /// The segments, by address.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Segment> + use<'a> {
        self.0.chunks_exact(SEGMENT).map(|bytes| {
            let mut fields = Fields::new(bytes);
            Segment {
                address: fields.u64().unwrap_or(0),
                len: fields.u64().unwrap_or(0),
                page_offset: fields.u64().unwrap_or(0),
                flags: fields.u32().unwrap_or(0),
                reserved: fields.u32().unwrap_or(0),
            }
        })
    }
}

impl core::fmt::Debug for Segments<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A mapped ELF file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Module<'a> {
    /// Time by which it was loaded.
    pub ticks: u64,
    /// Unique in the region.
    pub id: u32,
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Load bias: address minus virtual address.
    pub bias: u64,
    /// Build-id; empty for none.
    pub build_id: &'a [u8],
    /// Path; empty for none (vdso).
    pub path: &'a [u8],
    /// Loaded segments.
    pub segments: Segments<'a>,
}

/// An unloaded module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModuleGone {
    /// Time by which it was unloaded; not earlier than the last sample in it.
    pub ticks: u64,
    /// Its id.
    pub id: u32,
}

/// The start, renaming or end of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thread<'a> {
    /// Time of the event.
    pub ticks: u64,
    /// Thread id.
    pub tid: u32,
    /// Number of the thread in this region: unlike thread ids, it is never reused.
    pub seq: u32,
    /// Its name.
    pub name: &'a [u8],
}

/// The process is about to exec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exec<'a> {
    /// Time of the event.
    pub ticks: u64,
    /// Requested path; empty if unknown.
    pub path: &'a [u8],
}

/// The process is about to exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Time of the event.
    pub ticks: u64,
    /// Exit status, if known.
    pub status: Option<i32>,
}

/// A simultaneous reading of the clocks.
pub use crate::clock::Anchor;
pub use crate::recurring_stack::{FrameWords, RecurringStack};

/// A setting that the agent uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting<'a> {
    /// Time of the event.
    pub ticks: u64,
    /// Name.
    pub key: &'a [u8],
    /// Value.
    pub value: &'a [u8],
}

impl Setting<'_> {
    /// Name of the setting that lists what is recorded besides a clock, in the syntax of SELFWIND_EVENT.
    pub const PROBES: &'static [u8] = b"probes";
}

/// A perf ring whose events request stacks of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelRing {
    /// When it was opened.
    pub ticks: u64,
    /// The thread.
    pub tid: u32,
    /// Number of the thread in this region.
    pub seq: u32,
    /// Number of the ring in this region, referred to by answers.
    pub ring: u32,
    /// Index of the session's event that writes into it.
    pub event: u32,
    /// Size of the ring in bytes.
    pub bytes: u32,
    /// 1 if only events in user mode are counted because others are not permitted.
    pub user_only: u32,
    /// First address of the agent's code: samples there were caused by the agent itself.
    pub code_start: u64,
    /// First address after the agent's code.
    pub code_end: u64,
}

/// An interpreted function, referred to by the number in interpreted frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Function<'a> {
    /// When it was first seen.
    pub ticks: u64,
    /// Number in the region, from 1 on. No number stands for two functions, but a function may have two numbers.
    pub id: u32,
    /// The interpreter: 1 = CPython.
    pub language: u32,
    /// Encoding of `lines`: see FORMAT.md.
    pub lines_form: u32,
    /// First line in the source.
    pub first_line: u32,
    /// Bytes per character of `name`: 1 (Latin-1), 2 or 4.
    pub name_width: u32,
    /// Bytes per character of `file`.
    pub file_width: u32,
    /// Its name.
    pub name: &'a [u8],
    /// The source file.
    pub file: &'a [u8],
    /// Line table: the source line of each instruction; possibly truncated.
    pub lines: &'a [u8],
}

/// A tracepoint of the program, referred to by the number in event records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracepoint<'a> {
    /// When it was first hit.
    pub ticks: u64,
    /// Number in the region, from 1 on. No number stands for two tracepoints, but a name may have two numbers.
    pub id: u32,
    /// Name of the provider.
    pub provider: &'a [u8],
    /// Name of the tracepoint.
    pub name: &'a [u8],
    /// Names of the fields, each terminated by NUL.
    pub fields: &'a [u8],
}

/// A durable record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DurableRecord<'a> {
    Process(Process<'a>),
    Module(Module<'a>),
    ModuleGone(ModuleGone),
    Thread(Thread<'a>),
    ThreadName(Thread<'a>),
    ThreadEnd(Thread<'a>),
    Exec(Exec<'a>),
    Exit(Exit),
    Anchor(Anchor),
    Setting(Setting<'a>),
    KernelRing(KernelRing),
    Function(Function<'a>),
    Tracepoint(Tracepoint<'a>),
    RecurringStack(RecurringStack<'a>),
}

impl<'a> DurableRecord<'a> {
    /// Passes the record's kind and payload, in parts, to `sink`.
    pub fn encode<R>(&self, sink: impl FnOnce(DurableKind, &[&[u8]]) -> R) -> R {
        let mut fixed = Fixed::default();
        match self {
            Self::Process(p) => {
                fixed.u64(p.ticks).u32(p.pid).u32(p.ppid).u64(p.parent_nonce).u32(p.uid).u32(p.signal);
                fixed.u64(p.period_ns).u32(p.source);
                fixed.len(p.exe).len(p.argv).len(p.cwd).len(p.note);
                sink(DurableKind::Process, &[fixed.bytes(), p.exe, p.argv, p.cwd, p.note])
            }
            Self::Module(m) => {
                fixed.u64(m.ticks).u64(m.start).u64(m.end).u64(m.bias).u32(m.id);
                fixed.len(m.segments.0).len(m.build_id).len(m.path);
                sink(DurableKind::Module, &[fixed.bytes(), m.segments.0, m.build_id, m.path])
            }
            Self::ModuleGone(m) => {
                fixed.u64(m.ticks).u32(m.id);
                sink(DurableKind::ModuleGone, &[fixed.bytes()])
            }
            Self::Thread(t) => t.encode(DurableKind::Thread, fixed, sink),
            Self::ThreadName(t) => t.encode(DurableKind::ThreadName, fixed, sink),
            Self::ThreadEnd(t) => t.encode(DurableKind::ThreadEnd, fixed, sink),
            Self::Exec(e) => {
                fixed.u64(e.ticks).len(e.path);
                sink(DurableKind::Exec, &[fixed.bytes(), e.path])
            }
            Self::Exit(e) => {
                fixed.u64(e.ticks).u32(u32::from(e.status.is_some())).u32(e.status.unwrap_or(0) as u32);
                sink(DurableKind::Exit, &[fixed.bytes()])
            }
            Self::Anchor(a) => {
                fixed.u64(a.ticks).u64(a.monotonic_ns).u64(a.realtime_ns);
                sink(DurableKind::Anchor, &[fixed.bytes()])
            }
            Self::Setting(s) => {
                fixed.u64(s.ticks).len(s.key).len(s.value);
                sink(DurableKind::Setting, &[fixed.bytes(), s.key, s.value])
            }
            Self::KernelRing(r) => {
                fixed.u64(r.ticks).u32(r.tid).u32(r.seq).u32(r.ring).u32(r.event).u32(r.bytes);
                fixed.u32(r.user_only).u64(r.code_start).u64(r.code_end);
                sink(DurableKind::KernelRing, &[fixed.bytes()])
            }
            Self::Function(f) => {
                fixed.u64(f.ticks).u32(f.id).u32(f.language).u32(f.lines_form).u32(f.first_line);
                fixed.u32(f.name_width).u32(f.file_width).len(f.name).len(f.file).len(f.lines);
                sink(DurableKind::Function, &[fixed.bytes(), f.name, f.file, f.lines])
            }
            Self::Tracepoint(t) => {
                fixed.u64(t.ticks).u32(t.id).len(t.provider).len(t.name).len(t.fields);
                sink(DurableKind::Tracepoint, &[fixed.bytes(), t.provider, t.name, t.fields])
            }
            Self::RecurringStack(s) => {
                s.put(&mut fixed);
                sink(DurableKind::RecurringStack, &[fixed.bytes(), s.frames.bytes()])
            }
        }
    }

    /// Parses a payload of this kind. `None` unless every byte is accounted for.
    #[must_use]
    pub fn parse(kind: DurableKind, payload: &'a [u8]) -> Option<Self> {
        let mut fields = Fields::new(payload);
        let f = &mut fields;
        let record = match kind {
            DurableKind::Process => Self::Process(Process::parse(f)?),
            DurableKind::Module => Self::Module(Module::parse(f)?),
            DurableKind::ModuleGone => Self::ModuleGone(ModuleGone { ticks: f.u64()?, id: f.u32()? }),
            DurableKind::Thread => Self::Thread(Thread::parse(f)?),
            DurableKind::ThreadName => Self::ThreadName(Thread::parse(f)?),
            DurableKind::ThreadEnd => Self::ThreadEnd(Thread::parse(f)?),
            DurableKind::Exec => {
                let (ticks, len) = (f.u64()?, f.u32()?);
                Self::Exec(Exec { ticks, path: f.take(len)? })
            }
            DurableKind::Exit => {
                let (ticks, known, status) = (f.u64()?, f.u32()?, f.u32()?);
                let status = match known {
                    0 if status == 0 => None,
                    1 => Some(status as i32),
                    _ => return None,
                };
                Self::Exit(Exit { ticks, status })
            }
            DurableKind::Anchor => {
                Self::Anchor(Anchor { ticks: f.u64()?, monotonic_ns: f.u64()?, realtime_ns: f.u64()? })
            }
            DurableKind::Setting => {
                let (ticks, key, value) = (f.u64()?, f.u32()?, f.u32()?);
                Self::Setting(Setting { ticks, key: f.take(key)?, value: f.take(value)? })
            }
            DurableKind::KernelRing => Self::KernelRing(KernelRing {
                ticks: f.u64()?,
                tid: f.u32()?,
                seq: f.u32()?,
                ring: f.u32()?,
                event: f.u32()?,
                bytes: f.u32()?,
                user_only: f.u32()?,
                code_start: f.u64()?,
                code_end: f.u64()?,
            }),
            DurableKind::Function => Self::Function(Function::parse(f)?),
            DurableKind::Tracepoint => {
                let (ticks, id, lens) = (f.u64()?, f.u32()?, [f.u32()?, f.u32()?, f.u32()?]);
                let (provider, name, fields) = (f.take(lens[0])?, f.take(lens[1])?, f.take(lens[2])?);
                Self::Tracepoint(Tracepoint { ticks, id, provider, name, fields })
            }
            DurableKind::RecurringStack => Self::RecurringStack(RecurringStack::parse(f)?),
        };
        fields.is_empty().then_some(record)
    }
}

impl<'a> Process<'a> {
    fn parse(f: &mut Fields<'a>) -> Option<Self> {
        let mut process = Self {
            ticks: f.u64()?,
            pid: f.u32()?,
            ppid: f.u32()?,
            parent_nonce: f.u64()?,
            uid: f.u32()?,
            signal: f.u32()?,
            period_ns: f.u64()?,
            source: f.u32()?,
            ..Self::default()
        };
        let lens = [f.u32()?, f.u32()?, f.u32()?, f.u32()?];
        process.exe = f.take(lens[0])?;
        process.argv = f.take(lens[1])?;
        process.cwd = f.take(lens[2])?;
        process.note = f.take(lens[3])?;
        Some(process)
    }
}

impl<'a> Module<'a> {
    fn parse(f: &mut Fields<'a>) -> Option<Self> {
        let (ticks, start, end, bias, id) = (f.u64()?, f.u64()?, f.u64()?, f.u64()?, f.u32()?);
        let lens = [f.u32()?, f.u32()?, f.u32()?];
        if start > end || !(lens[0] as usize).is_multiple_of(SEGMENT) {
            return None;
        }
        let segments = Segments(f.take(lens[0])?);
        Some(Self {
            ticks,
            id,
            start,
            end,
            bias,
            segments,
            build_id: f.take(lens[1])?,
            path: f.take(lens[2])?,
        })
    }
}

impl<'a> Function<'a> {
    fn parse(f: &mut Fields<'a>) -> Option<Self> {
        let mut function = Self {
            ticks: f.u64()?,
            id: f.u32()?,
            language: f.u32()?,
            lines_form: f.u32()?,
            first_line: f.u32()?,
            name_width: f.u32()?,
            file_width: f.u32()?,
            ..Self::default()
        };
        let lens = [f.u32()?, f.u32()?, f.u32()?];
        function.name = f.take(lens[0])?;
        function.file = f.take(lens[1])?;
        function.lines = f.take(lens[2])?;
        Some(function)
    }
}

impl<'a> Thread<'a> {
    fn encode<R>(
        &self,
        kind: DurableKind,
        mut fixed: Fixed,
        sink: impl FnOnce(DurableKind, &[&[u8]]) -> R,
    ) -> R {
        fixed.u64(self.ticks).u32(self.tid).u32(self.seq).len(self.name);
        sink(kind, &[fixed.bytes(), self.name])
    }

    fn parse(f: &mut Fields<'a>) -> Option<Self> {
        let (ticks, tid, seq, len) = (f.u64()?, f.u32()?, f.u32()?, f.u32()?);
        Some(Self { ticks, tid, seq, name: f.take(len)? })
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
