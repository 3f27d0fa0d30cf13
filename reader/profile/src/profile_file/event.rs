//! What a profile tells, in the order it was learnt.
//!
//! Processes have numbers local to the profile, because a pid is neither unique over time nor over an
//! exec. All times are nanoseconds of CLOCK_MONOTONIC on the recording machine.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::comparison::Comparison;
use super::in_use::{LiveBlocks, LiveMappings};
use crate::tracepoint::{EventFields, Tracepoint};

/// Bytes of names in one [`GeneratedCode`].
const GENERATED_BYTES: usize = 32 << 10;

/// One event of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// How and where the profile was recorded. The first event.
    Session(SessionInfo),
    /// A process image appears. Precedes everything that names its number.
    Process(ProcessInfo),
    /// A module is mapped into a process.
    Module(ModuleInfo),
    /// A module is unmapped.
    ModuleGone(ModuleGone),
    /// A thread starts.
    Thread(ThreadInfo),
    /// A thread has another name than it was reported with.
    ThreadName(ThreadName),
    /// A thread ends.
    ThreadEnd(ThreadEnd),
    /// A stack.
    Sample(Sample),
    /// A function of the kernel.
    KernelSymbol(KernelSymbol),
    /// Something an agent tells of its own.
    Setting(Setting),
    /// Counters of a living process so far; a later one of the same process replaces it.
    Counters(CountersAt),
    /// A process image ends, with its final counters.
    ProcessEnd(ProcessEnd),
    /// Code that a process made itself, with the names it gave.
    Generated(GeneratedCode),
    /// Sampled blocks of memory that nobody has freed, at the end of their process or of the recording.
    LiveBlocks(LiveBlocks),
    /// Memory that is mapped, at the end of its process or of the recording.
    LiveMappings(LiveMappings),
    /// A function that an interpreter runs.
    Function(InterpretedFunction),
    /// A tracepoint of a process.
    Tracepoint(Tracepoint),
    /// How the copy of a stack compares with the stack.
    Comparison(Comparison),
    /// The recording ended in order. Absent when the recorder was killed.
    End(End),
}

/// How and where a profile was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionInfo {
    /// Version of the selfwind that recorded it.
    pub version: String,
    /// Host name.
    pub host: String,
    /// Kernel release, as uname prints it.
    pub kernel: String,
    /// Start, nanoseconds since 1970.
    pub started_realtime_ns: u64,
    /// Start, CLOCK_MONOTONIC.
    pub started_ns: u64,
    /// The command that was recorded; empty for a running process.
    pub command: Vec<String>,
    /// Samples per second of CPU time asked for.
    pub frequency: u32,
    /// Source of samples asked for (`auto`, `cpu`, `itimer`).
    pub source: String,
}

impl SessionInfo {
    /// When something happened, seconds since 1970; `ns` is of CLOCK_MONOTONIC.
    pub fn realtime_seconds(&self, ns: u64) -> i64 {
        let after = (ns as i64).saturating_sub(self.started_ns as i64);
        (self.started_realtime_ns as i64).saturating_add(after) / 1_000_000_000
    }
}

/// A process image: a new one after fork, and again after exec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Number of the image in this profile.
    pub id: u32,
    /// Process id.
    pub pid: u32,
    /// Process id of the parent.
    pub ppid: u32,
    /// The image it was forked or executed from, when that was recorded too.
    pub parent: Option<u32>,
    /// When the agent started in it.
    pub start_ns: u64,
    /// User id.
    pub uid: u32,
    /// CPU nanoseconds that one unit of weight stands for.
    pub period_ns: u64,
    /// What delivers its samples (`cpu`, `itimer`, ...).
    pub source: String,
    /// The executable.
    pub exe: PathBuf,
    /// The arguments, the program's name first.
    pub argv: Vec<String>,
    /// What the agent had to say about its start: bad settings, fallbacks. Often empty.
    pub note: String,
}

/// One PT_LOAD segment of a module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Segment {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// Offset in the file of the byte at `address`.
    pub pgoff: u64,
    /// ELF `p_flags`.
    pub flags: u32,
}

/// A module in the address space of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ModuleInfo {
    /// The process's number.
    pub process: u32,
    /// Number of the module in the process.
    pub module: u32,
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Address minus ELF virtual address (wrapping).
    pub bias: u64,
    /// Where the file was found; `[vdso]` has no file.
    pub path: PathBuf,
    /// The build-id note, empty when there is none.
    pub build_id: Vec<u8>,
    /// The loaded segments.
    pub segments: Vec<Segment>,
    /// It was not mapped before this time.
    pub loaded_ns: u64,
    /// The file at `path` when it was mapped: told of files without a build-id, which have nothing else to be known by.
    pub file: Option<FileIdentity>,
}

/// What tells a file from the one that a later build puts in its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// Bytes; 0 if it was replaced before it could be looked at.
    pub len: u64,
    /// When its content was changed last, nanoseconds since 1970.
    pub modified_ns: i64,
    /// Its number in its file system.
    pub inode: u64,
}

impl FileIdentity {
    /// Of a file that is there.
    pub fn of(metadata: &std::fs::Metadata) -> Self {
        let modified_ns =
            metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec());
        Self { len: metadata.len(), modified_ns, inode: metadata.ino() }
    }

    /// Whether a file may be this one. A copy that kept its time is; file systems that keep whole seconds are allowed for.
    pub fn is_of(&self, other: &FileIdentity) -> bool {
        let seconds = |ns: i64| ns.div_euclid(1_000_000_000);
        let whole = [self, other].iter().any(|file| file.modified_ns % 1_000_000_000 == 0);
        let modified = self.modified_ns == other.modified_ns
            || whole && seconds(self.modified_ns) == seconds(other.modified_ns);
        self.len != 0 && self.len == other.len && modified
    }
}

/// A module that is no longer mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModuleGone {
    /// The process's number.
    pub process: u32,
    /// The module's number.
    pub module: u32,
    /// When it was found gone.
    pub ns: u64,
}

/// Functions that a process made itself (just-in-time compilers). Only those that samples hit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GeneratedCode {
    /// The process's number.
    pub process: u32,
    /// The file in which the process named them.
    pub source: PathBuf,
    /// The functions. Where two overlap, the later one replaced the other.
    pub functions: Vec<GeneratedFunction>,
}

impl GeneratedCode {
    /// Functions of a file, in events that are smaller than a block.
    pub fn in_parts(
        process: u32,
        source: &Path,
        functions: impl IntoIterator<Item = GeneratedFunction>,
    ) -> Vec<Self> {
        let mut parts: Vec<Self> = Vec::new();
        let mut room = 0;
        for function in functions {
            let bytes = function.name.len() + 32;
            if bytes > room {
                room = GENERATED_BYTES;
                parts.push(Self { process, source: source.to_owned(), functions: Vec::new() });
            }
            room = room.saturating_sub(bytes);
            if let Some(part) = parts.last_mut() {
                part.functions.push(function);
            }
        }
        parts
    }
}

/// A function that a process made itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GeneratedFunction {
    /// It was not there before this time; 0 if that is not known.
    pub since_ns: u64,
    /// First address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Its name.
    pub name: String,
}

/// A function that an interpreter runs, as frames name it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct InterpretedFunction {
    /// The process's number.
    pub process: u32,
    /// The function's number in the process.
    pub id: u32,
    /// The interpreter: 1 is CPython.
    pub language: u32,
    /// First line in the source.
    pub first_line: u32,
    /// How `lines` is to be read: see the region format.
    pub lines_form: u32,
    /// Its name.
    pub name: String,
    /// The source file.
    pub file: String,
    /// Which line each instruction is of.
    pub lines: Vec<u8>,
}

/// A thread of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadInfo {
    /// The process's number.
    pub process: u32,
    /// Kernel thread id.
    pub tid: u32,
    /// Number of the thread in its process: thread ids are reused, these are not.
    pub seq: u32,
    /// Name, possibly empty.
    pub name: String,
    /// When the agent saw it first.
    pub start_ns: u64,
}

/// A thread's name, learnt later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadName {
    /// The process's number.
    pub process: u32,
    /// Kernel thread id.
    pub tid: u32,
    /// Number of the thread in its process.
    pub seq: u32,
    /// The name.
    pub name: String,
    /// When it was learnt.
    pub ns: u64,
}

/// The end of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadEnd {
    /// The process's number.
    pub process: u32,
    /// Kernel thread id.
    pub tid: u32,
    /// Number of the thread in its process.
    pub seq: u32,
    /// When it ended.
    pub ns: u64,
}

/// A stack and how much it stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The process's number.
    pub process: u32,
    /// Kernel thread id.
    pub tid: u32,
    /// Number of the thread in its process.
    pub thread_seq: u32,
    /// When it was taken.
    pub ns: u64,
    /// Timer periods it stands for.
    pub weight: u32,
    /// Why the walk ended: `unwind::End` as u8, 0 is complete.
    pub end: u8,
    /// What asked for it, see [`ProcessInfo::source`]; a number of the agent.
    pub source: u8,
    /// The kernel's cookie this stack answers, 0 for none.
    pub nonce: u64,
    /// `unwind::Frame` words, leaf first.
    pub frames: Vec<u64>,
    /// The stack was already told by an earlier sample: this one is no walk of its own.
    pub repeated: bool,
    /// What an event of a tracepoint carries, if it is one.
    pub fields: Option<Box<EventFields>>,
    /// What the kernel recorded at this stack. What their weights leave of `weight` is the stack's without kernel part.
    pub kernel: Vec<KernelSample>,
}

impl Sample {
    /// What the sample is made of; nothing if it weighs nothing.
    pub fn parts(&self) -> impl Iterator<Item = SamplePart<'_>> + Clone {
        let told: u64 = self.kernel.iter().map(|kernel| u64::from(kernel.weight)).sum();
        let left = u64::from(self.weight).saturating_sub(told) as u32;
        let bare = (left > 0).then_some(SamplePart { ns: self.ns, weight: left, event: 0, kernel: &[] });
        self.kernel.iter().map(KernelSample::part).chain(bare)
    }
}

/// A part of a sample: an event of the kernel's, or what no event stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplePart<'a> {
    /// When it happened.
    pub ns: u64,
    /// What it stands for.
    pub weight: u32,
    /// Which of the session's events, from 0.
    pub event: u8,
    /// Addresses in the kernel on top of the sample's stack, leaf first.
    pub kernel: &'a [u64],
}

/// The end of a sample that no stack answered: the thread had moved on. Beyond all `unwind::End`.
pub const NO_ANSWER: u8 = 0xff;

/// In place of an address in the kernel, above the frames of a wait: the thread had been woken and had no processor yet.
pub const WAKE_LATENCY: u64 = u64::MAX;
/// Its name in outputs.
pub const WAKE_LATENCY_NAME: &str = "[wake latency]";
/// In place of addresses in the kernel, from this on: what a thread did not run for. A [`KernelSymbol`] names each.
pub const WALL_MARKS: u64 = u64::MAX - 0x1_0000;

/// Why a walk ended, as outputs name it.
pub fn end_name(end: u8) -> &'static str {
    match unwind::End::from_number(end) {
        Some(end) => end.name(),
        None if end == NO_ANSWER => "no-answer",
        None => "unknown",
    }
}

/// An event of the kernel's, on top of the stack of a [`Sample`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelSample {
    /// When it happened.
    pub ns: u64,
    /// Periods or microseconds it stands for.
    pub weight: u32,
    /// Which of the session's events, from 0.
    pub event: u8,
    /// Addresses in the kernel, leaf first; none if the event happened in user mode.
    pub frames: Vec<u64>,
}

impl KernelSample {
    fn part(&self) -> SamplePart<'_> {
        SamplePart { ns: self.ns, weight: self.weight, event: self.event, kernel: &self.frames }
    }
}

/// A function of the kernel, told before the first sample that needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelSymbol {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Its name.
    pub name: String,
    /// The kernel module it belongs to; empty for the kernel itself.
    pub module: String,
}

/// Something an agent tells of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// The process's number.
    pub process: u32,
    /// What it is about.
    pub key: String,
    /// What it says.
    pub value: String,
}

/// Events counted under one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// The cause's name.
    pub name: String,
    /// Samples.
    pub count: u64,
    /// Timer periods these samples would have stood for.
    pub weight: u64,
}

/// A bucket of the histogram of times spent in the handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NanosBucket {
    /// Least value in it, nanoseconds.
    pub low: u64,
    /// One past the greatest.
    pub high: u64,
    /// Values counted.
    pub count: u64,
}

/// What a process counted, and what the reader found in its ring: `fired = recorded + lost + skipped`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Times the handler ran for a sample.
    pub fired: u64,
    /// Timer periods these stand for.
    pub fired_weight: u64,
    /// Samples written to the ring.
    pub recorded: u64,
    /// Timer periods these stand for.
    pub recorded_weight: u64,
    /// Recorded samples whose stack is incomplete.
    pub truncated: u64,
    /// Samples for which there was no room, by cause.
    pub lost: Vec<Cause>,
    /// Samples that were not taken for a good reason, by cause.
    pub skipped: Vec<Cause>,
    /// Histogram of handler times; empty buckets are left out.
    pub handler: Vec<NanosBucket>,
    /// Threads the agent saw start.
    pub threads_started: u64,
    /// Threads the agent saw end.
    pub threads_ended: u64,
    /// Records the reader took from the ring.
    pub drained: u64,
    /// Their bytes in the ring, headers included.
    pub ring_bytes: u64,
    /// Records known to be missing by a jump of a thread's sequence number.
    pub gaps: u64,
    /// Records that were begun and never finished.
    pub torn: u64,
    /// Chunks set aside because their contents break the format.
    pub violations: u64,
    /// Recorded before this recording began, and overwritten or taken by another reader since.
    pub earlier: u64,
    /// Timer periods these stand for.
    pub earlier_weight: u64,
    /// Stacks that refer to one that is missing.
    pub undecodable: u64,
    /// What became of the kernel's events, see `stitch::StitchCounts`.
    pub kernel: Vec<Cause>,
}

/// Counters at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountersAt {
    /// The process's number.
    pub process: u32,
    /// When they were read.
    pub ns: u64,
    /// The counters.
    pub counters: Counters,
}

/// How a process image ended, as far as the recorder knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ProcessFate {
    /// It called exit.
    Exited = 0,
    /// It was replaced by another program.
    Executed = 1,
    /// It went away without a word: killed, or ended by `_exit`.
    #[default]
    Vanished = 2,
    /// It was still running when the recording ended.
    Running = 3,
}

/// The end of a process image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessEnd {
    /// The process's number.
    pub process: u32,
    /// When it was found ended.
    pub ns: u64,
    /// How.
    pub fate: ProcessFate,
    /// Final counters.
    pub counters: Counters,
}

/// The end of the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// When.
    pub ns: u64,
    /// Nanoseconds since the start of the recording.
    pub wall_ns: u64,
    /// Exit status of the command as a shell tells it (128+N for signal N); none for a running process.
    pub status: Option<i32>,
}
