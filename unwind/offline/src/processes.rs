//! The process table: which process has mapped what and when, and the walks of their samples.

use std::collections::HashMap;
use std::path::Path;

use unwind::{Frame, Memory, Module, Modules, Registers, RuleCache, StackCache, Walk, guess, walk};

use crate::binaries::{Binaries, Index};
use crate::binary::Binary;
use crate::history::{Change, History};
use crate::layout::{Layout, Mapping};
use crate::sample::{Sample, SampleMemory};

/// Walkers (stack caches and module lists) kept, one per process. Each takes at most a third of a MiB.
const WALKERS: usize = 32;
/// Times one sample is walked again because the walk reached a file that had not been read.
const ATTEMPTS: usize = 64;

/// A new mapping, with the fields of perf's MMAP2 records.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewMapping<'n> {
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// File offset of the byte at `start`.
    pub offset: u64,
    /// The file name as the process sees it. Names that begin with neither `/` nor `[` are not files.
    pub path: &'n [u8],
    /// Build-id of the file; empty if unknown.
    pub build_id: &'n [u8],
    /// Whether it is executable. Other mappings only replace what they overlap.
    pub executable: bool,
}

/// A frame and the mapping it lies in.
#[derive(Clone, Copy, Debug)]
pub struct PlacedFrame<'m, 'a> {
    /// The frame.
    pub frame: Frame,
    /// Its stack pointer; 0 if unknown.
    pub stack_pointer: u64,
    /// The mapping; `None` if nothing is known to be mapped there.
    pub mapping: Option<&'m Mapping<'a>>,
}

/// All processes and their mappings over time.
///
/// Times may come from any clock, provided that samples use the same one. Events and samples may arrive out of order,
/// with one exception: a fork copies what is known of the parent when the fork is reported.
pub struct Processes<'a> {
    index: Index<'a>,
    processes: HashMap<u32, Process<'a>>,
    walkers: Vec<Box<Walker>>,
    /// Number of mappings so far; the source of mapping ids.
    mappings: u64,
    /// Number of snapshots so far; the source of snapshot numbers.
    snapshots: u64,
    /// Number of samples so far, for least-recently-used eviction of walkers.
    samples: u64,
}

#[derive(Default)]
struct Process<'a> {
    history: History<'a>,
    ended_ns: Option<u64>,
    snapshot: Option<Snapshot<'a>>,
}

/// How frames are found.
#[derive(Clone, Copy)]
enum Mode {
    Walk,
    /// By scanning the stack up to this address.
    Guess {
        until: u64,
    },
}

/// The walker's modules for one layout.
struct Snapshot<'a> {
    edition: u64,
    /// Value of [`Binaries::reads`] when the modules were made.
    reads: u64,
    /// Unique number of the snapshot.
    number: u64,
    modules: Vec<Module<'a>>,
}

/// The stack and rule cache of one process.
struct Walker {
    pid: u32,
    /// The snapshot that the caches are valid for.
    snapshot: u64,
    /// Number of the last sample walked with it.
    used: u64,
    cache: RuleCache,
    stack_cache: StackCache,
}

impl<'a> Processes<'a> {
    /// An empty table. Files are read into `binaries`.
    pub fn new(binaries: &'a Binaries) -> Self {
        let (processes, walkers) = (HashMap::new(), Vec::new());
        Self { index: Index::new(binaries), processes, walkers, mappings: 0, snapshots: 0, samples: 0 }
    }

    /// Reports a mapping, which replaces whatever it overlaps.
    pub fn map(&mut self, pid: u32, ns: u64, new: &NewMapping<'_>) {
        let end = new.start.saturating_add(new.len);
        if end == new.start {
            return;
        }
        if !new.executable {
            return self.unmap(pid, ns, new.start, new.len);
        }
        let binary = is_file(new.path).then(|| self.index.get(&path_of(new.path), new.build_id));
        self.mappings += 1;
        let mapping =
            Mapping { start: new.start, end, offset: new.offset, binary, since_ns: ns, id: self.mappings };
        self.tell(pid, ns, Change::Map(mapping));
    }

    /// Reports that `len` bytes from `start` are unmapped.
    pub fn unmap(&mut self, pid: u32, ns: u64, start: u64, len: u64) {
        self.tell(pid, ns, Change::Unmap { start, end: start.saturating_add(len) });
    }

    /// Reports a fork: `child` starts with the mappings of `parent` at this time.
    pub fn fork(&mut self, parent: u32, child: u32, ns: u64) {
        if parent == child {
            return;
        }
        let layout = self.processes.get_mut(&parent).map(|parent| parent.history.at(ns).0);
        self.tell(child, ns, Change::Replace(layout.unwrap_or_default()));
    }

    /// Reports an exec: all mappings of the process are gone.
    pub fn exec(&mut self, pid: u32, ns: u64) {
        self.tell(pid, ns, Change::Clear);
    }

    /// Reports the end of a process. Earlier samples may still arrive until the time is [settled](Self::settle).
    pub fn exit(&mut self, pid: u32, ns: u64) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.ended_ns = Some(ns);
        }
    }

    /// Promises that no event or sample with an earlier time will follow, and frees what only those would need.
    pub fn settle(&mut self, ns: u64) {
        self.processes.retain(|_, process| process.ended_ns.is_none_or(|ended| ended >= ns));
        self.processes.values_mut().for_each(|process| process.history.settle(ns));
    }

    /// The mapping at an address and time.
    pub fn find(&mut self, pid: u32, ns: u64, address: u64) -> Option<Mapping<'a>> {
        let mapping = self.processes.get_mut(&pid)?.history.at(ns).0.find(address).copied()?;
        // Reading the file makes its load bias known.
        mapping.binary.and_then(|binary| self.index.binaries().read(binary));
        Some(mapping)
    }

    /// Walks the stack of a sample and passes its frames to `take`, leaf first. Files are read when a frame lies in
    /// them.
    ///
    /// Returns why the walk ended. A pid that was never reported has no mappings.
    pub fn frames(&mut self, sample: &Sample<'_>, take: impl FnMut(PlacedFrame<'_, 'a>)) -> Walk {
        let layout = self.processes.entry(sample.pid).or_default().history.at(sample.ns).0;
        let mut memory = SampleMemory { layout: &layout, binaries: self.index.binaries(), sample };
        self.frames_in(sample.pid, sample.ns, &sample.registers, &mut memory, take)
    }

    /// Like [`frames`](Self::frames), with stack and code read through `memory`.
    pub fn frames_in(
        &mut self,
        pid: u32,
        ns: u64,
        registers: &Registers,
        memory: &mut impl Memory,
        take: impl FnMut(PlacedFrame<'_, 'a>),
    ) -> Walk {
        self.find_frames(pid, ns, Mode::Walk, registers, memory, take)
    }

    /// Like [`frames`](Self::frames) without unwinding: every word of the stack that points after a call in a file is
    /// a frame.
    pub fn guesses(&mut self, sample: &Sample<'_>, take: impl FnMut(PlacedFrame<'_, 'a>)) -> Walk {
        let process = self.processes.entry(sample.pid).or_default();
        let layout = process.history.at(sample.ns).0;
        read_files_of_words(&layout, sample, self.index.binaries());
        let mut memory = SampleMemory { layout: &layout, binaries: self.index.binaries(), sample };
        let mode = Mode::Guess { until: sample.stack_end() };
        self.find_frames(sample.pid, sample.ns, mode, &sample.registers, &mut memory, take)
    }

    fn find_frames(
        &mut self,
        pid: u32,
        ns: u64,
        mode: Mode,
        registers: &Registers,
        memory: &mut impl Memory,
        mut take: impl FnMut(PlacedFrame<'_, 'a>),
    ) -> Walk {
        let process = self.processes.entry(pid).or_default();
        // The main thread has ended, other threads have not.
        process.ended_ns = process.ended_ns.filter(|&ended| ns <= ended);
        let (layout, edition) = process.history.at(ns);
        self.samples += 1;
        let walker = walker_of(&mut self.walkers, pid, self.samples);
        let mut attempts = ATTEMPTS;
        let walked = loop {
            let reads = self.index.binaries().reads();
            process.snapshot.take_if(|snapshot| (snapshot.edition, snapshot.reads) != (edition, reads));
            if process.snapshot.is_none() {
                self.snapshots += 1;
                let modules = modules(&layout, &mut self.index);
                process.snapshot = Some(Snapshot { edition, reads, number: self.snapshots, modules });
            }
            let Some(snapshot) = &process.snapshot else { break Walk::fresh(0, unwind::End::NoModule) };
            if walker.snapshot != snapshot.number {
                walker.snapshot = snapshot.number;
                walker.cache.clear();
                walker.stack_cache.forget();
            }
            let modules = Modules::new(&snapshot.modules, 0).unwrap_or_default();
            let Walker { cache, stack_cache, .. } = &mut *walker;
            let most = StackCache::CAPACITY;
            let walked = match mode {
                Mode::Walk => walk(&modules, cache, registers, memory, stack_cache, most),
                Mode::Guess { until } => guess(&modules, registers, until, memory, stack_cache, most),
            };
            attempts -= 1;
            read_files_of_frames(&layout, walker.stack_cache.frames(), self.index.binaries());
            if attempts == 0 || self.index.binaries().reads() == reads {
                break walked;
            }
        };
        let pointers = walker.stack_cache.stack_pointers().chain(std::iter::repeat(0));
        for (&frame, stack_pointer) in walker.stack_cache.frames().iter().zip(pointers) {
            take(PlacedFrame { frame, stack_pointer, mapping: layout.find(frame.lookup_address()) });
        }
        walked
    }

    /// Start of the function that contains an address, from the call frame information of its file.
    pub fn function_at(&mut self, pid: u32, ns: u64, address: u64) -> Option<u64> {
        let mapping = self.find(pid, ns, address)?;
        let contents = mapping.binary?.contents()?;
        let bias = contents.bias(mapping.start, mapping.offset)?;
        let module = contents.module(mapping.start, mapping.end, bias, None);
        Some(module.fde_at(address).ok()??.start)
    }

    /// The files that could not be read and the reasons, sorted by name.
    pub fn problems(&self) -> Vec<(&'a Path, &'a str)> {
        let all = self.index.all().into_iter();
        let mut problems: Vec<_> =
            all.filter_map(|binary: &'a Binary| Some((binary.path(), binary.problem()?))).collect();
        problems.sort_unstable();
        problems
    }

    fn tell(&mut self, pid: u32, ns: u64, change: Change<'a>) {
        let process = self.processes.entry(pid).or_default();
        // After an exit the pid belongs to a new process.
        if process.ended_ns.is_some_and(|ended| ended <= ns) {
            process.ended_ns = None;
        }
        process.history.tell(ns, change);
    }
}

fn is_file(path: &[u8]) -> bool {
    let anonymous = [&b"//anon"[..], b"/dev/zero", b"/SYSV", b"/anon_hugepage"];
    let special = [&b"[heap]"[..], b"[stack]", b"[anon", b"[vsyscall]", b"[uprobes]"];
    matches!(path.first(), Some(b'/' | b'['))
        && !anonymous.iter().chain(&special).any(|prefix| path.starts_with(prefix))
        && !path.starts_with(b"/memfd:")
}

fn path_of(path: &[u8]) -> std::path::PathBuf {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(path)).to_owned()
}

/// The modules of a layout. Modules of files that have not been read carry only their address range.
fn modules<'a>(layout: &Layout<'a>, index: &mut Index<'a>) -> Vec<Module<'a>> {
    let named = layout.mappings().iter().filter_map(|mapping| Some((mapping, mapping.binary?)));
    named
        .map(|(mapping, binary)| {
            let &Mapping { start, end, offset, .. } = mapping;
            let known =
                binary.contents().and_then(|contents| Some((contents, contents.bias(start, offset)?)));
            match known {
                Some((contents, bias)) => contents.module(start, end, bias, index.table(binary)),
                None => Module { start, end, bias: start.wrapping_sub(offset), ..Module::default() },
            }
        })
        .collect()
}

/// Reads the files that the frames lie in.
fn read_files_of_frames(layout: &Layout<'_>, frames: &[Frame], binaries: &Binaries) {
    for frame in frames {
        if let Some(binary) = layout.find(frame.lookup_address()).and_then(|mapping| mapping.binary) {
            binaries.read(binary);
        }
    }
}

/// Reads the files that words of the stack point into.
fn read_files_of_words(layout: &Layout<'_>, sample: &Sample<'_>, binaries: &Binaries) {
    for word in sample.stack.as_chunks().0 {
        if let Some(binary) = layout.find(u64::from_le_bytes(*word)).and_then(|mapping| mapping.binary) {
            binaries.read(binary);
        }
    }
}

/// The walker of a process; if it has none, a new one in place of the least recently used.
fn walker_of(walkers: &mut Vec<Box<Walker>>, pid: u32, sample: u64) -> &mut Walker {
    let index = walkers.iter().position(|walker| walker.pid == pid).unwrap_or_else(|| {
        if walkers.len() < WALKERS {
            walkers.push(Box::new(Walker {
                pid,
                snapshot: 0,
                used: 0,
                cache: RuleCache::new(),
                stack_cache: StackCache::new(),
            }));
            return walkers.len() - 1;
        }
        let oldest = walkers.iter().enumerate().min_by_key(|(_, walker)| walker.used);
        oldest.map_or(0, |(index, _)| index)
    });
    let walker = &mut walkers[index];
    if walker.pid != pid {
        (walker.pid, walker.snapshot) = (pid, 0);
    }
    walker.used = sample;
    walker
}
