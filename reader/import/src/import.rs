//! Converts records to events.

use std::collections::HashMap;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;

use linux_perf_event_reader::{
    CommOrExecRecord, EventRecord, ForkOrExitRecord, Mmap2FileId, Mmap2Record, MmapRecord, RecordType,
    SampleFormat, SampleRecord,
};
use offline::{Binaries, GeneratedCode, NewMapping, Processes, Search};
use selfwind_profile::profile_file::{End as Ended, Event, KernelSample, ProcessFate, Sample, SessionInfo};
use unwind::{End, FoundBy, Frame};

use crate::callchain::Callchain;
use crate::error::ImportError;
use crate::fields::{Fields, until_zero};
use crate::header::Header;
use crate::images::{Common, Image};
use crate::measures::{self, Measure};
use crate::records::{Record, Records, Tail};
use crate::registers;

/// Number of bytes per read.
const BUFFER: usize = 1 << 20;
/// PROT_EXEC.
const EXECUTABLE: u32 = 4;
/// The kernel's own pid in records.
const KERNEL_PID: i32 = -1;
/// Name of the mapping of the kernel itself; a symbol's name follows.
const KERNEL_TEXT: &[u8] = b"[kernel.kallsyms]";
/// Number of samples between two removals of ended processes, and how long an ended process is remembered.
const SETTLE_EVERY: u64 = 1 << 16;
const REMEMBERED_NS: u64 = 60_000_000_000;
/// End of user space.
const ADDRESS_END: u64 = 1 << 56;
/// Maximum number of addresses of a call chain: the kernel's limit (`kernel.perf_event_max_stack`).
const CHAIN_MAX: usize = 127;

/// Receives the events of a profile.
pub trait Sink {
    /// The next event.
    ///
    /// # Errors
    /// If it cannot be stored; the import then ends.
    fn event(&mut self, event: Event) -> io::Result<()>;

    /// Kernel addresses belong to this release, which had a symbol of its text at this address.
    fn kernel(&mut self, _release: &str, _text: u64) {}
}

/// Totals of an import.
#[derive(Debug)]
pub struct Summary {
    /// Number of samples.
    pub samples: u64,
    /// Number of samples whose copied stack or call chain does not reach its root.
    pub truncated: u64,
    /// Number of samples that perf lost.
    pub lost: u64,
    /// Number of malformed records.
    pub damaged: u64,
    /// How the file ended.
    pub tail: Tail,
    /// Files that could not be read, and why.
    pub unread: Vec<(PathBuf, String)>,
}

/// A file of `perf record`, after its header.
pub struct Import<R> {
    header: Header,
    file: R,
    measures: Vec<Measure>,
}

impl<R: Read + Seek> Import<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// If it is not such a file, or cannot be imported.
    pub fn open(mut file: R) -> Result<Self, ImportError> {
        let header = Header::read(&mut file)?;
        let first = &header.attributes[0].layout;
        if header.attributes.iter().any(|attribute| attribute.layout.id_parse_info != first.id_parse_info) {
            return Err(ImportError::MixedEvents);
        }
        for attribute in &header.attributes {
            let format = attribute.attr.sample_format;
            if format.contains(SampleFormat::READ) {
                return Err(ImportError::SampleRead);
            }
            for (part, name) in [(SampleFormat::TID, "thread ids"), (SampleFormat::TIME, "times")] {
                if !format.contains(part) {
                    return Err(ImportError::Lacks(name));
                }
            }
            let is_foreign = !header.arch.is_empty() && header.arch != registers::ARCH;
            if format.contains(SampleFormat::STACK_USER) && is_foreign {
                return Err(ImportError::OtherMachine(header.arch.clone()));
            }
        }
        let count = header.attributes.len();
        let measures = measures::measures(&header.attributes).ok_or(ImportError::TooManyEvents(count))?;
        Ok(Self { header, file, measures })
    }

    /// Passes the events of the file to `sink`. `search` says where to find the program's files.
    ///
    /// # Errors
    /// If the file cannot be read, or the sink fails.
    pub fn run(self, search: Search, sink: &mut dyn Sink) -> Result<Summary, ImportError> {
        let Self { header, mut file, measures } = self;
        file.seek(SeekFrom::Start(header.data)).map_err(ImportError::Read)?;
        let layouts = header.attributes.iter().map(|attribute| attribute.layout).collect();
        let file = BufReader::with_capacity(BUFFER, file);
        let mut records = Records::new(file, header.data_len, header.is_cut, layouts, header.by_id.clone());
        let binaries = Binaries::new(search);
        let common = Common { period_ns: measures::period_ns(&measures), next: 1 };
        let mut importer = Importer {
            header: &header,
            measures: &measures,
            processes: Processes::new(&binaries),
            images: HashMap::new(),
            common,
            chain: Callchain::default(),
            events: Vec::new(),
            began_ns: None,
            last_ns: 0,
            samples: 0,
            truncated: 0,
            lost: 0,
            lost_early: 0,
            damaged: 0,
            sink,
        };
        while let Some(record) = records.next() {
            importer.record(&record).map_err(ImportError::Write)?;
            records.recycle(record);
        }
        importer.finish(records.tail()).map_err(ImportError::Write)
    }
}

struct Importer<'i> {
    header: &'i Header,
    measures: &'i [Measure],
    processes: Processes<'i>,
    images: HashMap<u32, Image>,
    common: Common,
    chain: Callchain,
    /// Events not yet passed to the sink.
    events: Vec<Event>,
    began_ns: Option<u64>,
    last_ns: u64,
    samples: u64,
    truncated: u64,
    lost: u64,
    /// Samples lost before the first process.
    lost_early: u64,
    damaged: u64,
    sink: &'i mut dyn Sink,
}

impl Importer<'_> {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        let Some(attribute) = self.header.attributes.get(record.attribute) else { return Ok(()) };
        let raw = record.raw(attribute.layout);
        let ns = record.ns;
        // Checks that `linux-perf-event-reader` leaves to its callers.
        let parsed = if is_sound(record, attribute.layout.sample_format) { raw.parse().ok() } else { None };
        match parsed {
            Some(EventRecord::Sample(sample)) => self.sample(&sample, record.attribute, ns),
            Some(EventRecord::Mmap2(map)) => self.map2(&map, ns),
            Some(EventRecord::Mmap(map)) => self.map(&map, ns),
            Some(EventRecord::Comm(comm)) => self.comm(&comm, ns),
            Some(EventRecord::Fork(fork)) => self.fork(&fork),
            Some(EventRecord::Exit(exit)) => self.exit(&exit),
            Some(EventRecord::Lost(lost)) => {
                let pid = raw.common_data().ok().and_then(|common| common.pid);
                self.lose(pid, lost.count);
            }
            Some(EventRecord::Raw(raw)) if raw.record_type == RecordType::LOST_SAMPLES => {
                let pid = raw.common_data().ok().and_then(|common| common.pid);
                let count = Fields(&record.body).u64().unwrap_or(0);
                self.lose(pid, count);
            }
            Some(_) => {}
            None => self.damaged += 1,
        }
        self.events.drain(..).try_for_each(|event| self.sink.event(event))
    }

    fn image(&mut self, pid: i32) -> &mut Image {
        self.images.entry(pid as u32).or_default()
    }

    fn map2(&mut self, map: &Mmap2Record<'_>, ns: u64) {
        let path = map.path.as_slice();
        let path = until_zero(&path);
        let build_id = match &map.file_id {
            Mmap2FileId::BuildId(build_id) => build_id.as_slice(),
            Mmap2FileId::InodeAndVersion(_) => self.header.build_ids.get(path).map_or(&[][..], Vec::as_slice),
        };
        let new = NewMapping {
            start: map.address,
            len: map.length,
            offset: map.page_offset,
            path,
            build_id,
            executable: map.protection & EXECUTABLE != 0,
        };
        self.mapped(map.pid, ns, &new);
    }

    fn map(&mut self, map: &MmapRecord<'_>, ns: u64) {
        let path = map.path.as_slice();
        let path = until_zero(&path);
        if map.pid == KERNEL_PID {
            // The name is followed by that of a symbol, whose address replaces the offset.
            if path.starts_with(KERNEL_TEXT) && map.page_offset != 0 {
                self.sink.kernel(&self.header.release, map.page_offset);
            }
            return;
        }
        let build_id = self.header.build_ids.get(path).map_or(&[][..], Vec::as_slice);
        let &MmapRecord {
            address: start, length: len, page_offset: offset, is_executable: executable, ..
        } = map;
        self.mapped(map.pid, ns, &NewMapping { start, len, offset, path, build_id, executable });
    }

    fn mapped(&mut self, pid: i32, ns: u64, new: &NewMapping<'_>) {
        if pid == KERNEL_PID {
            return;
        }
        let image = self.image(pid);
        // The kernel maps the program before the dynamic linker.
        if new.executable && !image.exe.has_root() && new.path.starts_with(b"/") {
            image.exe = String::from_utf8_lossy(new.path).into_owned().into();
        }
        self.processes.map(pid as u32, ns, new);
    }

    fn comm(&mut self, comm: &CommOrExecRecord<'_>, ns: u64) {
        let pid = comm.pid as u32;
        if comm.is_execve {
            self.processes.exec(pid, ns);
            let old = self.images.remove(&pid).unwrap_or_default();
            let mut new = old.successor(pid, ns);
            new.ppid = old.ppid;
            self.images.insert(pid, new);
            self.events.extend(old.end(ns, ProcessFate::Executed));
        }
        let name = String::from_utf8_lossy(until_zero(&comm.name.as_slice())).into_owned();
        if comm.is_execve {
            // Until it is mapped: samples may precede that.
            self.image(comm.pid).exe = name.clone().into();
        }
        let mut events = std::mem::take(&mut self.events);
        self.image(comm.pid).rename(comm.tid as u32, name, ns, &mut events);
        self.events = events;
    }

    fn fork(&mut self, fork: &ForkOrExitRecord) {
        let ns = fork.timestamp;
        let (pid, ppid) = (fork.pid as u32, fork.ppid as u32);
        if pid == ppid {
            return self.image(fork.pid).new_thread(fork.tid as u32, fork.ptid as u32);
        }
        self.processes.fork(ppid, pid, ns);
        let parent = self.images.entry(ppid).or_default();
        let mut child = parent.successor(ppid, ns);
        (child.ppid, child.exe) = (ppid, parent.exe.clone());
        child.new_thread(pid, ppid);
        if let Some(old) = self.images.insert(pid, child) {
            self.events.extend(old.end(ns, ProcessFate::Vanished));
        }
    }

    fn exit(&mut self, exit: &ForkOrExitRecord) {
        let pid = exit.pid as u32;
        if exit.pid == exit.tid && exit.pid != 0 {
            self.processes.exit(pid, exit.timestamp);
        }
    }

    fn lose(&mut self, pid: Option<i32>, count: u64) {
        self.lost = self.lost.saturating_add(count);
        match pid.and_then(|pid| self.images.get_mut(&(pid as u32))) {
            Some(image) => image.lose(count),
            None => self.lost_early = self.lost_early.saturating_add(count),
        }
    }

    fn sample(&mut self, sample: &SampleRecord<'_>, attribute: usize, ns: u64) {
        let Some(measure) = self.measures.get(attribute) else { return };
        let (Some(event), Some(pid), Some(tid)) = (measure.event, sample.pid, sample.tid) else { return };
        let weight = measure.weight(sample.period);
        self.begin(ns);
        self.last_ns = self.last_ns.max(ns);
        self.samples += 1;
        let pid = pid as u32;
        let image = self.images.entry(pid).or_default();
        if pid == 0 && image.exe.as_os_str().is_empty() {
            image.exe = "swapper".into();
        }
        let process = image.number(pid, &mut self.common, &mut self.events);
        let thread_seq = image.thread(process, tid as u32, ns, &mut self.events);
        self.chain.fill(sample);
        let mut frames = Vec::new();
        let end = self.user_frames(sample, pid, process, ns, &mut frames);
        let image = self.images.entry(pid).or_default();
        let is_truncated = end != End::Root;
        self.truncated += u64::from(is_truncated);
        let counters = &mut image.counters;
        counters.fired += 1;
        counters.recorded += 1;
        counters.fired_weight = counters.fired_weight.saturating_add(weight);
        counters.recorded_weight = counters.recorded_weight.saturating_add(weight);
        counters.truncated += u64::from(is_truncated);
        if self.lost_early > 0 {
            image.lose(std::mem::take(&mut self.lost_early));
        }
        self.events.push(Event::Sample(Sample {
            process,
            tid: tid as u32,
            thread_seq,
            ns,
            weight: weight.try_into().unwrap_or(u32::MAX),
            end: end as u8,
            frames,
            kernel: parts(ns, weight, event, &self.chain.kernel),
            ..Sample::default()
        }));
        if self.samples.is_multiple_of(SETTLE_EVERY) {
            self.processes.settle(ns.saturating_sub(REMEMBERED_NS));
        }
    }

    /// The frames of the program, leaf first, and why the walk ended. Emits the modules that contain them.
    fn user_frames(
        &mut self,
        sample: &SampleRecord<'_>,
        pid: u32,
        process: u32,
        ns: u64,
        frames: &mut Vec<u64>,
    ) -> End {
        let Some(image) = self.images.get_mut(&pid) else { return End::Root };
        let events = &mut self.events;
        if let Some(copied) = copied_registers(sample)
            && let Some((stack, len)) = &sample.user_stack
        {
            let bytes = stack.as_slice();
            let bytes = bytes.get(..(*len).min(bytes.len() as u64) as usize).unwrap_or_default();
            let copy = offline::Sample {
                pid,
                ns,
                registers: copied,
                stack_start: copied.sp(),
                stack: bytes,
                generated: GeneratedCode::default(),
            };
            let walked = self.processes.frames(&copy, |placed| {
                frames.push(placed.frame.bits());
                if let Some(mapping) = placed.mapping {
                    image.module(process, mapping, ns, events);
                }
            });
            return walked.end;
        }
        for (number, &address) in self.chain.user.iter().enumerate() {
            // A value that is no address did not come from a frame pointer.
            if address >= ADDRESS_END {
                return End::NoModule;
            }
            let is_leaf = number == 0;
            let found_by = if is_leaf { FoundBy::Cfi } else { FoundBy::FramePointer };
            let frame = Frame::new(address, found_by, is_leaf);
            frames.push(frame.bits());
            if let Some(mapping) = self.processes.find(pid, ns, frame.lookup_address()) {
                image.module(process, &mapping, ns, events);
            }
        }
        if frames.len() >= CHAIN_MAX { End::DepthLimit } else { End::Root }
    }

    /// Emits the facts about the recording, before all other events.
    fn begin(&mut self, ns: u64) {
        if self.began_ns.is_some() {
            return;
        }
        let started_ns = self.header.sample_time.map_or(ns, |(first, _)| first.min(ns));
        self.began_ns = Some(started_ns);
        let clock = self.header.clock;
        let started_realtime_ns =
            clock.map_or(0, |pair| pair.realtime_ns.wrapping_add(started_ns.wrapping_sub(pair.ns)));
        self.events.push(Event::Session(SessionInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            host: self.header.host.clone(),
            kernel: self.header.release.clone(),
            started_realtime_ns,
            started_ns,
            command: self.header.command.clone(),
            frequency: measures::frequency(&self.header.attributes),
            source: measures::source(self.measures),
        }));
    }

    fn finish(mut self, tail: Tail) -> io::Result<Summary> {
        self.begin(0);
        let ns = self.last_ns;
        let mut images: Vec<_> = std::mem::take(&mut self.images).into_iter().collect();
        images.sort_unstable_by_key(|&(pid, _)| pid);
        let ends = images.into_iter().filter_map(|(_, image)| image.end(ns, ProcessFate::Running));
        self.events.extend(ends);
        if tail == Tail::Whole {
            let wall_ns = ns.saturating_sub(self.began_ns.unwrap_or(ns));
            self.events.push(Event::End(Ended { ns, wall_ns, status: None }));
        }
        self.events.drain(..).try_for_each(|event| self.sink.event(event))?;
        let unread = self.processes.problems().into_iter();
        Ok(Summary {
            samples: self.samples,
            truncated: self.truncated,
            lost: self.lost,
            damaged: self.damaged,
            tail,
            unread: unread.map(|(path, why)| (path.to_owned(), why.to_owned())).collect(),
        })
    }
}

/// The registers copied with a sample, if they suffice for a walk.
fn copied_registers(sample: &SampleRecord<'_>) -> Option<unwind::Registers> {
    let copied = sample.user_regs.as_ref()?;
    let has_all =
        (0..64).filter(|number| registers::MASK >> number & 1 != 0).all(|it| copied.get(it).is_some());
    if has_all { registers::registers(|number| copied.get(number)) } else { None }
}

/// The kernel's half of a sample. `None` if a sample of the first event has no kernel frames: the stack is all of it.
fn parts(ns: u64, weight: u64, event: u8, kernel: &[u64]) -> Vec<KernelSample> {
    if event == 0 && kernel.is_empty() && weight <= u64::from(u32::MAX) {
        return Vec::new();
    }
    let mut left = weight;
    let mut parts = Vec::new();
    // A weight has at most 32 bits.
    while left > 0 && parts.len() < 16 {
        let weight = left.min(u64::from(u32::MAX)) as u32;
        parts.push(KernelSample { ns, weight, event, frames: kernel.to_vec() });
        left -= u64::from(weight);
    }
    parts
}

/// Whether the lengths that `linux-perf-event-reader` does not check fit the record.
fn is_sound(record: &Record, format: SampleFormat) -> bool {
    match record.kind {
        // After two ids and three addresses: the length of a build-id.
        RecordType::MMAP2 => {
            record.body.get(32).is_some_and(|&len| len <= 20 || record.misc & BUILD_ID_MISC == 0)
        }
        RecordType::SAMPLE if format.contains(SampleFormat::CALLCHAIN) => {
            let before = SampleFormat::IDENTIFIER
                | SampleFormat::IP
                | SampleFormat::TID
                | SampleFormat::TIME
                | SampleFormat::ADDR
                | SampleFormat::ID
                | SampleFormat::STREAM_ID
                | SampleFormat::CPU
                | SampleFormat::PERIOD;
            let at = format.intersection(before).bits().count_ones() as usize * 8;
            let count = record.body.get(at..).and_then(|rest| Fields(rest).u64());
            count.is_some_and(|count| count <= record.body.len() as u64 / 8)
        }
        _ => true,
    }
}

/// PERF_RECORD_MISC_MMAP_BUILD_ID.
const BUILD_ID_MISC: u16 = 1 << 14;
