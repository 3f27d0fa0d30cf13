//! perf's file format (tools/perf/Documentation/perf.data-file-format.txt), for `perf report`, `perf script` and tools that read their
//! output.
//!
//! It contains only recorded addresses and mappings: perf looks up the names by the build-ids in the file.
//! One record per sample with its time, whose period is the sample's weight; perf itself sorts records by time. The output
//! is written while the profile is read, so memory does not grow with the number of samples.

mod header;
mod record;

use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use unwind::Frame;

use self::record::{Body, Kind, Trailer, misc};
use super::description::{Description, Writer};
use crate::events::{EventCount, Events, NoSuchEvent, UNCLAIMED, index_of};
use crate::measure::Measure;
use crate::profile::{self, LossFinder, Totals};
use crate::profile_file::{
    Event, KernelSymbol, ModuleInfo, ProcessInfo, ProfileError, ProfileReader, Sample, SessionInfo,
    WALL_MARKS,
};
use crate::stats::{Stats, Tally};

/// The format.
pub(super) const DESCRIPTION: Description = Description {
    is_binary: true,
    shown_by: Some("perf report -i"),
    file_name: Some("perf.data"),
    ..Description::text("perf", &["perf.data"], Writer::Recorded)
};

/// Length to which the kernel truncates names of threads.
const COMM_MAX: usize = 15;
/// ELF `p_flags`: executable.
const EXECUTABLE: u32 = 1;
/// In a call chain: kernel addresses follow, or user addresses.
const CONTEXT_KERNEL: u64 = (-128i64) as u64;
const CONTEXT_USER: u64 = (-512i64) as u64;
/// The pid of the kernel's mappings.
const KERNEL_PID: u32 = u32::MAX;
/// The kernel maps itself, followed by its modules, to the last 2 GiB (Documentation/arch/x86/x86_64/mm.rst).
const KERNEL_TEXT: Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_a000_0000;
/// PROT_READ | PROT_EXEC
const PROT: u32 = 5;
/// MAP_PRIVATE
const PRIVATE: u32 = 2;

/// What perf's format needs of a profile, without names.
pub(super) struct RawProfile {
    path: PathBuf,
    session: SessionInfo,
    /// Process images by number.
    processes: HashMap<u32, ProcessInfo>,
    stats: Stats,
    events: Events,
    /// What the written events count.
    measures: Vec<Measure>,
    /// The only event to write; `None` for all.
    chosen: Option<u8>,
    /// Some samples have kernel stacks.
    in_kernel: bool,
    /// Why the profile is incomplete, if it is.
    pub(super) incomplete: Option<String>,
    /// A kernel function, from which perf derives the kernel's load address.
    anchor: Option<KernelSymbol>,
}

/// The profile cannot be read, or the output cannot be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum PerfDataError {
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Output(#[from] io::Error),
}

impl RawProfile {
    /// Reads a profile to its end, so that all errors are known before writing.
    pub(super) fn open(path: &Path) -> Result<Self, ProfileError> {
        let mut raw = RawProfile {
            path: path.to_owned(),
            session: SessionInfo::default(),
            processes: HashMap::new(),
            stats: Stats::default(),
            events: Events::default(),
            measures: Vec::new(),
            chosen: None,
            in_kernel: false,
            incomplete: None,
            anchor: None,
        };
        let mut tally = Tally::default();
        let mut events = ProfileReader::open(path)?.without_samples();
        let mut learnt = Events::default();
        for event in &mut events {
            let event = event?;
            tally.add(&event);
            match event {
                Event::Session(session) => raw.session = session,
                Event::Process(info) => drop(raw.processes.insert(info.id, info)),
                Event::LiveBlocks(_) | Event::LiveMappings(_) => learnt.learn(&event),
                Event::KernelSymbol(symbol) if symbol.module.is_empty() && symbol.start < WALL_MARKS => {
                    raw.anchor.get_or_insert(symbol);
                }
                _ => {}
            }
        }
        let known = raw.processes.values().map(|info| (&info.source, info.period_ns));
        raw.events = Events::new(&raw.session, known).with_learnt_of(&mut learnt);
        let (claimed, mut unclaimed) = (raw.events.measures().len(), false);
        let tail = ProfileReader::open(path)?.for_each_sample(|sample_ref| {
            let sample = sample_ref.sample;
            raw.in_kernel |= sample.kernel.iter().any(|kernel| !kernel.frames.is_empty());
            tally.sample(sample_ref);
            raw.events.counts(sample, |count| unclaimed |= usize::from(count.event) >= claimed);
        })?;
        raw.measures = raw.events.measures().to_vec();
        raw.measures.extend(unclaimed.then(|| UNCLAIMED.clone()));
        raw.stats = tally.finish(events.bytes());
        let len = std::fs::metadata(path).map_or(events.bytes(), |metadata| metadata.len());
        raw.incomplete = tail.and_then(|tail| tail.remark(len));
        Ok(raw)
    }

    /// The totals of the file, as far as they are known without names.
    pub(super) fn totals(&self) -> Totals {
        let Stats { samples, weight, truncated, .. } = self.stats;
        Totals { samples, weight, truncated, ..Totals::default() }
    }

    /// Leaves out all events but this one.
    ///
    /// # Errors
    /// When the profile has no such event.
    pub(super) fn choose(&mut self, event: &str) -> Result<(), NoSuchEvent> {
        let index = index_of(&self.measures, event)?;
        (self.chosen, self.measures) = (Some(index), vec![self.measures[usize::from(index)].clone()]);
        Ok(())
    }

    /// Writes perf's file.
    pub(super) fn write(&self, out: &mut dyn Write) -> Result<(), PerfDataError> {
        // The header contains the length of the records, so they are produced twice, the first time to measure them.
        let mut measured = Length(0);
        self.records(&mut measured)?;
        let events = header::Events { measures: &self.measures, in_kernel: self.in_kernel };
        out.write_all(&header::before_records(&events, measured.0))?;
        self.records(out)?;
        out.write_all(&header::behind_records(&self.session, &events, measured.0))?;
        Ok(())
    }

    fn records(&self, out: &mut dyn Write) -> Result<(), PerfDataError> {
        let mut writer = Records { raw: self, out, body: Body::default() };
        if let Some(anchor) = &self.anchor {
            writer.kernel(anchor)?;
        }
        let mut finder = LossFinder::default();
        let mut losses = Vec::new();
        for event in ProfileReader::open(&self.path)? {
            let event = event?;
            finder.learn(&event, &mut losses);
            for loss in losses.drain(..) {
                let pid = writer.pid(loss.process);
                writer.body.u64(header::EVENT_ID).u64(loss.samples);
                writer.put(Kind::Lost, 0, Trailer { pid, tid: pid, ns: loss.until_ns })?;
            }
            writer.event(event)?;
        }
        // perf treats a file without records as damaged.
        writer.body.finish(Kind::FinishedRound, 0, None, writer.out)?;
        Ok(())
    }
}

/// Counts bytes.
struct Length(u64);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Turns events into records.
struct Records<'a> {
    raw: &'a RawProfile,
    out: &'a mut dyn Write,
    body: Body,
}

impl Records<'_> {
    fn pid(&self, process: u32) -> u32 {
        // A process without a record is identified by its number, so that none of its samples is dropped.
        self.raw.processes.get(&process).map_or(process, |info| info.pid)
    }

    fn put(&mut self, kind: Kind, misc: u16, trailer: Trailer) -> io::Result<()> {
        self.body.finish(kind, misc, Some(trailer), self.out)
    }

    fn event(&mut self, event: Event) -> io::Result<()> {
        match event {
            Event::Process(info) => self.process(&info),
            Event::Module(module) => self.module(&module),
            Event::Thread(thread) => {
                let pid = self.pid(thread.process);
                if thread.tid != pid {
                    self.fork([pid, thread.tid], [pid, pid], thread.start_ns)?;
                }
                self.comm(pid, thread.tid, &thread.name, 0, thread.start_ns)
            }
            Event::ThreadName(named) => {
                self.comm(self.pid(named.process), named.tid, &named.name, 0, named.ns)
            }
            Event::Sample(sample) => self.sample(&sample),
            // An end may be reported before the last sample; perf would forget the mappings.
            _ => Ok(()),
        }
    }

    fn process(&mut self, info: &ProcessInfo) -> io::Result<()> {
        let parent = info.parent.map(|parent| self.pid(parent)).filter(|&pid| pid != info.pid);
        // Mappings of a forked process are those of its parent; after exec there are none.
        let exec = if parent.is_some() { 0 } else { misc::COMM_EXEC };
        if let Some(parent) = parent {
            self.fork([info.pid, info.pid], [parent, parent], info.start_ns)?;
        }
        let name = profile::Process { info: info.clone() }.name();
        self.comm(info.pid, info.pid, &name, exec, info.start_ns)
    }

    fn fork(&mut self, [pid, tid]: [u32; 2], [ppid, ptid]: [u32; 2], ns: u64) -> io::Result<()> {
        self.body.u32(pid).u32(ppid).u32(tid).u32(ptid).u64(ns);
        self.put(Kind::Fork, 0, Trailer { pid, tid, ns })
    }

    fn comm(&mut self, pid: u32, tid: u32, name: &str, misc: u16, ns: u64) -> io::Result<()> {
        if name.is_empty() {
            return Ok(());
        }
        let cut = (0..=COMM_MAX.min(name.len())).rev().find(|&at| name.is_char_boundary(at)).unwrap_or(0);
        self.body.u32(pid).u32(tid).text(&name.as_bytes()[..cut]);
        self.put(Kind::Comm, misc, Trailer { pid, tid, ns })
    }

    /// One record for each executable segment.
    fn module(&mut self, module: &ModuleInfo) -> io::Result<()> {
        use std::os::unix::ffi::OsStrExt;
        let pid = self.pid(module.process);
        // Not before the record of the process, which empties its address space.
        let start = self.raw.processes.get(&module.process).map_or(0, |info| info.start_ns);
        let trailer = Trailer { pid, tid: pid, ns: module.loaded_ns.max(start) };
        let whole =
            (module.start, module.end - module.start.min(module.end), module.start.wrapping_sub(module.bias));
        let executable = module.segments.iter().filter(|segment| segment.flags & EXECUTABLE != 0);
        let mut ranges: Vec<_> = executable.map(|s| (s.address, s.len, s.pgoff)).collect();
        if ranges.is_empty() {
            ranges.push(whole);
        }
        for (address, len, offset) in ranges {
            self.body.u32(pid).u32(pid).u64(address).u64(len).u64(offset);
            let with_id = self.body.build_id(&module.build_id);
            self.body.u32(PROT).u32(PRIVATE).text(module.path.as_os_str().as_bytes());
            self.put(Kind::Mmap2, misc::USER | if with_id { misc::MMAP_BUILD_ID } else { 0 }, trailer)?;
        }
        Ok(())
    }

    /// The mapping of the kernel: `anchor` is the address of the symbol by which perf finds its load address.
    fn kernel(&mut self, anchor: &KernelSymbol) -> io::Result<()> {
        let Range { start, end } = KERNEL_TEXT;
        self.body.u32(KERNEL_PID).u32(0).u64(start).u64(end - start).u64(anchor.start);
        self.body.text(format!("[kernel.kallsyms]{}", anchor.name).as_bytes());
        self.put(Kind::Mmap, misc::KERNEL, Trailer { pid: KERNEL_PID, tid: 0, ns: 0 })
    }

    fn sample(&mut self, sample: &Sample) -> io::Result<()> {
        let pid = self.pid(sample.process);
        // The address of each call, not of its return, which may be in the next function.
        let address = |&word: &u64| Frame::from_bits(word).lookup_address();
        let mut counts = Vec::new();
        let chosen = self.raw.chosen;
        self.raw.events.counts(sample, |count| match chosen {
            None => counts.push(count),
            Some(event) if event == count.event => counts.push(EventCount { event: 0, ..count }),
            Some(_) => {}
        });
        for EventCount { ns, event, weight, kernel, .. } in counts {
            // A mark is not an address.
            let kernel = match kernel {
                [mark, kernel @ ..] if *mark >= WALL_MARKS => kernel,
                kernel => kernel,
            };
            let in_kernel = !kernel.is_empty();
            // perf has no frames other than native ones.
            let frames =
                || sample.frames.iter().filter(|word| Frame::from_bits(**word).as_interpreted().is_none());
            let leaf = kernel.first().copied().or_else(|| frames().next().map(address)).unwrap_or(0);
            self.body.u64(header::EVENT_ID + u64::from(event));
            self.body.u64(leaf).u32(pid).u32(sample.tid).u64(ns).u64(weight);
            let marks = if in_kernel { 2 } else { 1 };
            self.body.u64((kernel.len() + frames().count()) as u64 + marks);
            if in_kernel {
                self.body.u64(CONTEXT_KERNEL);
                kernel.iter().for_each(|&address| _ = self.body.u64(address));
            }
            self.body.u64(CONTEXT_USER);
            for address in frames().map(address) {
                self.body.u64(address);
            }
            self.body.finish(
                Kind::Sample,
                if in_kernel { misc::KERNEL } else { misc::USER },
                None,
                self.out,
            )?;
        }
        Ok(())
    }
}
