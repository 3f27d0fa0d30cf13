//! The events of a profile, in the order in which they were recorded.
//!
//! Processes have numbers local to the profile, because a pid is unique neither over time nor across exec. All times are nanoseconds
//! of CLOCK_MONOTONIC on the recording machine.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::comparison::Comparison;
use super::in_use::{LiveBlocks, LiveMappings};
use crate::tracepoint::{EventFields, Tracepoint};

/// Maximum size of the names in one [`GeneratedCode`], in bytes.
const GENERATED_BYTES: usize = 32 << 10;

/// One event of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// How and where the profile was recorded. The first event.
    Session(SessionInfo),
    /// A process image appears. Precedes everything that refers to its number.
    Process(ProcessInfo),
    /// A module is mapped into a process.
    Module(ModuleInfo),
    /// A module is unmapped.
    ModuleGone(ModuleGone),
    /// A thread starts.
    Thread(ThreadInfo),
    /// A thread has changed its name.
    ThreadName(ThreadName),
    /// A thread ends.
    ThreadEnd(ThreadEnd),
    /// A stack.
    Sample(Sample),
    /// A function of the kernel.
    KernelSymbol(KernelSymbol),
    /// A note or setting of an agent.
    Setting(Setting),
    /// Counters of a running process so far; a later event of the same process replaces them.
    Counters(CountersAt),
    /// A process image ends, with its final counters.
    ProcessEnd(ProcessEnd),
    /// Generated code of a process, with its names.
    Generated(GeneratedCode),
    /// Sampled blocks of memory not freed at the end of their process or of the recording.
    LiveBlocks(LiveBlocks),
    /// Memory that is mapped, at the end of its process or of the recording.
    LiveMappings(LiveMappings),
    /// An interpreted function.
    Function(InterpretedFunction),
    /// A tracepoint of a process.
    Tracepoint(Tracepoint),
    /// The comparison of a stack copy with the stack.
    Comparison(Comparison),
    /// The regular end of the recording. Missing if the recorder was killed.
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
    /// Requested samples per second of CPU time.
    pub frequency: u32,
    /// Requested sources (`auto`, `cpu`, `itimer`, ...).
    pub source: String,
}

impl SessionInfo {
    /// Converts `ns` of CLOCK_MONOTONIC to seconds since 1970.
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
    /// CPU nanoseconds per unit of weight.
    pub period_ns: u64,
    /// The source of its samples (`cpu`, `itimer`, ...).
    pub source: String,
    /// The executable.
    pub exe: PathBuf,
    /// The arguments, the program's name first.
    pub argv: Vec<String>,
    /// The agent's note about its start: invalid settings, fallbacks. Often empty.
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
    /// The identity of the file at `path` when it was mapped; only for files without a build-id.
    pub file: Option<FileIdentity>,
}

/// Distinguishes a file from a later build at the same path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// Size in bytes; 0 if it was replaced before it could be examined.
    pub len: u64,
    /// Modification time in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Inode number.
    pub inode: u64,
}

impl FileIdentity {
    /// The identity of an existing file.
    pub fn of(metadata: &std::fs::Metadata) -> Self {
        let modified_ns =
            metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec());
        Self { len: metadata.len(), modified_ns, inode: metadata.ino() }
    }

    /// True if a file may be this one: also a copy with the same modification time, even on file systems with times in whole seconds.
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

/// Generated functions of a process (just-in-time compilers), only those with samples.
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
    /// Splits the functions of a file into events that are smaller than a block.
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

/// A generated function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GeneratedFunction {
    /// It did not exist before this time; 0 if unknown.
    pub since_ns: u64,
    /// First address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Its name.
    pub name: String,
}

/// An interpreted function, to which frames refer.
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
    /// Format of `lines`: see the region format.
    pub lines_form: u32,
    /// Its name.
    pub name: String,
    /// The source file.
    pub file: String,
    /// The line table: lines of instructions.
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

/// A thread's name, reported later.
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
    /// When it was read.
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

/// A stack and its weight.
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
    /// Its weight in timer periods.
    pub weight: u32,
    /// Why the walk ended: `unwind::End` as u8, 0 is complete.
    pub end: u8,
    /// Number of its source in the agent, see [`ProcessInfo::source`].
    pub source: u8,
    /// The nonce of the request that this stack answers; 0 for none.
    pub nonce: u64,
    /// `unwind::Frame` words, leaf first.
    pub frames: Vec<u64>,
    /// The stack is that of an earlier sample, without a walk of its own.
    pub repeated: bool,
    /// The fields of a tracepoint event, if it is one.
    pub fields: Option<Box<EventFields>>,
    /// Kernel events at this stack. The rest of `weight` belongs to the stack without a kernel part.
    pub kernel: Vec<KernelSample>,
}

/// Source number of allocations in samples.
pub(crate) const ALLOCATION: u8 = 4;

impl Sample {
    /// How many events it stands for: allocations of one stack and size are one sample, whose weight is their number.
    pub fn events(&self) -> u64 {
        if self.source == ALLOCATION { self.weight.into() } else { 1 }
    }

    /// The parts of the sample; none if it has no weight.
    pub fn parts(&self) -> impl Iterator<Item = SamplePart<'_>> + Clone {
        let told: u64 = self.kernel.iter().map(|kernel| u64::from(kernel.weight)).sum();
        let left = u64::from(self.weight).saturating_sub(told) as u32;
        let bare = (left > 0).then_some(SamplePart { ns: self.ns, weight: left, event: 0, kernel: &[] });
        self.kernel.iter().map(KernelSample::part).chain(bare)
    }
}

/// A part of a sample: a kernel event, or the rest of its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplePart<'a> {
    /// When it happened.
    pub ns: u64,
    /// Its weight.
    pub weight: u32,
    /// Which of the session's events, from 0.
    pub event: u8,
    /// Addresses in the kernel on top of the sample's stack, leaf first.
    pub kernel: &'a [u64],
}

/// The end of a sample without a user stack: the thread had moved on. Greater than all values of `unwind::End`.
pub const NO_ANSWER: u8 = 0xff;

/// Marker frame on top of a wait, in place of a kernel address: the thread was woken and had no CPU yet.
pub const WAKE_LATENCY: u64 = u64::MAX;
/// Its name in outputs.
pub const WAKE_LATENCY_NAME: &str = "[wake latency]";
/// From here on, marker frames in place of kernel addresses: why a thread did not run. A [`KernelSymbol`] names each.
pub const WALL_MARKS: u64 = u64::MAX - 0x1_0000;

/// The name of a walk's end in outputs.
pub fn end_name(end: u8) -> &'static str {
    match unwind::End::from_number(end) {
        Some(end) => end.name(),
        None if end == NO_ANSWER => "no-answer",
        None => "unknown",
    }
}

/// A kernel event on top of the stack of a [`Sample`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelSample {
    /// When it happened.
    pub ns: u64,
    /// Its weight in periods or microseconds.
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

/// A kernel function, stored before the first sample that needs it.
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

/// A note or setting of an agent.
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
    /// Weight of these samples in timer periods.
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

/// The counters of a process, and the reader's counters for its pool: `fired = recorded + lost + skipped`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Times the handler ran for a sample.
    pub fired: u64,
    /// Their weight in timer periods.
    pub fired_weight: u64,
    /// Samples written to the pool.
    pub recorded: u64,
    /// Their weight in timer periods.
    pub recorded_weight: u64,
    /// Recorded samples whose stack is incomplete.
    pub truncated: u64,
    /// Lost samples, by cause.
    pub lost: Vec<Cause>,
    /// Skipped samples, by cause.
    pub skipped: Vec<Cause>,
    /// Histogram of handler times; empty buckets are left out.
    pub handler: Vec<NanosBucket>,
    /// Threads the agent saw start.
    pub threads_started: u64,
    /// Threads the agent saw end.
    pub threads_ended: u64,
    /// Records that the reader drained.
    pub drained: u64,
    /// Their size in the pool in bytes, including headers.
    pub ring_bytes: u64,
    /// Records that are missing according to sequence numbers.
    pub gaps: u64,
    /// Records that were never finished.
    pub torn: u64,
    /// Chunks set aside because their contents break the format.
    pub violations: u64,
    /// Recorded before this recording began, and since overwritten or drained by another reader.
    pub earlier: u64,
    /// Their weight in timer periods.
    pub earlier_weight: u64,
    /// Stacks that refer to a missing one.
    pub undecodable: u64,
    /// How kernel events ended, see `stitch::StitchCounts`.
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
    /// It ended without a report: killed, or by `_exit`.
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
    /// When its end was noticed.
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
    /// Exit status of the command as a shell reports it (128+N for signal N); none for a running process.
    pub status: Option<i32>,
}
