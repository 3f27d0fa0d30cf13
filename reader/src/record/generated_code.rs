//! Names code that the dynamic loader does not know, while the names can still be found: parts of files that processes map
//! themselves (`second_mappings`), and generated code. A just-in-time compiler's map or dump may be removed when the process
//! ends, and the profile may be read on another machine.
//!
//! Nothing is read for a process whose samples all lie in modules, and only functions that were sampled are kept.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, mem};

use foldhash::fast::FixedState;
use selfwind_profile::profile_file::{Event, GeneratedCode, ProcessInfo, SampleRef, SessionInfo};
use selfwind_profile::symbolize::{NameFile, perf_map_path};
use unwind::Frame;

use crate::drain::namespaces::PID_HERE;
use crate::proc::{self, Mapping};
use crate::process_files;
use crate::record::debugger_interface::{self, DebuggerInterface};
use crate::record::file_growth::FileGrowth;
use crate::record::second_mappings;

/// Maximum number of addresses remembered for a process.
const ADDRESSES_MAX: usize = 1 << 20;
/// How often a process's mappings are searched for a dump.
const SEARCH_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of these searches.
const SEARCHES_MAX: u32 = 30;

/// What is known about the code of all running processes.
#[derive(Debug, Default)]
pub(crate) struct GeneratedCodeKeeper {
    session: SessionInfo,
    processes: BTreeMap<u32, ProcessCode>,
    /// The process of the last sample.
    last: Option<u32>,
}

/// What is known about the code of one process image.
#[derive(Debug, Default)]
struct ProcessCode {
    /// With the pid that it has here; 0 if that is not known.
    info: ProcessInfo,
    /// The pid that it has for itself, after which it names its files.
    own_pid: u32,
    /// Address ranges of all modules it ever had (end exclusive).
    modules: BTreeMap<u64, u64>,
    /// Sampled addresses.
    sampled: HashSet<u64, FixedState>,
    /// Its perf map and its jitdump, once found.
    map: Option<NameFile>,
    map_growth: FileGrowth,
    dump: Option<(PathBuf, NameFile)>,
    searched: Option<Instant>,
    searches: u32,
    /// Code registered for debuggers.
    interface: DebuggerInterface,
    /// Number of modules found that the loader does not know.
    mapped: u32,
}

impl GeneratedCodeKeeper {
    /// Notes the addresses of a sample. Its shared frames are those of the previous sample, which may be of another process.
    pub(super) fn sample(&mut self, SampleRef { sample, frames, shared }: SampleRef<'_>) {
        let before = self.last.replace(sample.process);
        let known = if before == self.last { shared } else { 0 };
        let new = frames.get(known..).unwrap_or(&[]);
        match self.processes.get_mut(&sample.process) {
            Some(code) => code.note_frames(new),
            None => self.process(sample.process).note_frames(new),
        }
    }

    /// Handles an event other than a sample. Returns events to be stored before it: modules as they are found, and before the end
    /// of a process the names of its generated code.
    pub(crate) fn observe(&mut self, event: &Event) -> Vec<Event> {
        match event {
            Event::Session(session) => self.session = session.clone(),
            Event::Process(info) => {
                let code = self.process(info.id);
                (code.info, code.own_pid) = (info.clone(), info.pid);
            }
            Event::Setting(setting) if setting.key == PID_HERE => {
                self.process(setting.process).info.pid = setting.value.parse().unwrap_or(0);
            }
            Event::Module(module) => {
                let end = self.process(module.process).modules.entry(module.start).or_default();
                *end = module.end.max(*end);
            }
            Event::Counters(at) => {
                let code = self.processes.entry(at.process).or_default();
                return code.search(&self.session, at.ns);
            }
            Event::ProcessEnd(end) => {
                let code = self.processes.remove(&end.process).unwrap_or_default();
                return code.collect(&self.session).into_iter().map(Event::Generated).collect();
            }
            _ => {}
        }
        Vec::new()
    }

    fn process(&mut self, number: u32) -> &mut ProcessCode {
        self.processes.entry(number).or_default()
    }
}

impl ProcessCode {
    /// Notes the frames of a sample.
    fn note_frames(&mut self, frames: &[u64]) {
        if self.sampled.len() < ADDRESSES_MAX {
            self.sampled.extend(frames.iter().map(|word| Frame::from_bits(*word).lookup_address()));
        }
    }

    /// The sampled addresses outside all modules. Modules may be reported after samples in them, so this is decided late.
    fn outside(&self) -> BTreeSet<u64> {
        let inside = |address: &u64| {
            let before = self.modules.range(..=*address).next_back();
            before.is_some_and(|(_, &end)| *address < end)
        };
        self.sampled.iter().copied().filter(|address| !inside(address)).collect()
    }

    /// Opens a file that the process has under this path: in its own file system, while it is running.
    fn open(&self, path: &Path, session: &SessionInfo) -> Option<NameFile> {
        let since = session.realtime_seconds(self.info.start_ns);
        let paths = [process_files::within_root(self.info.pid, path), path.to_owned()];
        paths.iter().find_map(|path| NameFile::open(path, self.info.uid, since).ok())
    }

    /// Searches a running process for files with names, before it removes them, for files it has mapped itself, and for code
    /// registered for debuggers. The writer of a jitdump maps it so that profilers can find it.
    fn search(&mut self, session: &SessionInfo, now_ns: u64) -> Vec<Event> {
        // Code may take the place of other code: so when each line was written counts.
        if let Some(bytes) = self.map.as_ref().and_then(NameFile::bytes) {
            self.map_growth.note(bytes, now_ns);
        }
        let due =
            self.searched.is_none_or(|last| last.elapsed() >= SEARCH_EVERY) && self.searches < SEARCHES_MAX;
        if !(due || self.interface.is_due()) || self.info.pid == 0 {
            return Vec::new();
        }
        let outside = self.outside();
        if outside.is_empty() {
            return Vec::new();
        }
        let begun = Instant::now();
        let Ok(mappings) = proc::mappings(self.info.pid) else { return Vec::new() };
        if self.interface.is_due() {
            self.interface.read(self.info.pid, &mappings, now_ns, begun);
        }
        if !due {
            return Vec::new();
        }
        self.searched = Some(Instant::now());
        self.searches += 1;
        self.map = self.map.take().or_else(|| self.open(&perf_map_path(self.own_pid), session));
        let is_dump = |mapping: &&Mapping| {
            let name = mapping.path.file_name().unwrap_or_default().to_string_lossy();
            !mapping.is_deleted && name.starts_with("jit-") && name.ends_with(".dump")
        };
        if let (None, Some(mapping)) = (&self.dump, mappings.iter().find(is_dump)) {
            let path = mapping.path.clone();
            self.dump = self.open(&path, session).map(|file| (path, file));
        }
        let modules = second_mappings::find(&mappings, &self.info, &outside, self.mapped);
        self.mapped += modules.len() as u32;
        self.modules.extend(modules.iter().map(|module| (module.start, module.end)));
        modules.into_iter().map(Event::Module).collect()
    }

    /// The names of the sampled code.
    fn collect(mut self, session: &SessionInfo) -> Vec<GeneratedCode> {
        let outside = self.outside();
        if outside.is_empty() || self.own_pid == 0 {
            return Vec::new();
        }
        let hit = |start: u64, len: u64| {
            start
                .checked_add(len)
                .is_some_and(|end| start < end && outside.range(start..end).next().is_some())
        };
        let reported = mem::take(&mut self.interface).functions(hit);
        let mut events =
            GeneratedCode::in_parts(self.info.id, Path::new(debugger_interface::SOURCE), reported);
        // A jitdump has timestamps, so it comes last and takes precedence.
        let path = perf_map_path(self.own_pid);
        let map = self.map.take().or_else(|| self.open(&path, session));
        let since = |offset| self.map_growth.written_since(offset);
        if let Some(functions) = map.and_then(|file| file.perf_map(hit, since).ok()) {
            events.extend(GeneratedCode::in_parts(self.info.id, &path, functions));
        }
        let dump = self.dump.take().or_else(|| {
            let mut paths = self.dumps().into_iter();
            paths.find_map(|path| self.open(&path, session).map(|file| (path, file)))
        });
        if let Some((path, file)) = dump
            && let Ok(functions) = file.jitdump(hit)
        {
            events.extend(GeneratedCode::in_parts(self.info.id, &path, functions));
        }
        events
    }

    /// Where compilers put jitdumps.
    fn dumps(&self) -> Vec<PathBuf> {
        let name = format!("jit-{}.dump", self.own_pid);
        let mut paths: Vec<PathBuf> = Vec::new();
        paths.extend(std::env::current_dir().map(|directory| directory.join(&name)));
        let home = std::env::var_os("JITDUMPDIR").or_else(|| std::env::var_os("HOME"));
        if let Some(home) = home
            && let Ok(entries) = fs::read_dir(Path::new(&home).join(".debug/jit"))
        {
            paths.extend(entries.flatten().map(|entry| entry.path().join(&name)));
        }
        paths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_that_was_hit_is_noted() {
        let mut code = ProcessCode::default();
        let mut state = 1u64;
        let mut expected = HashSet::default();
        for _ in 0..20_000 {
            let mut word = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Some often, some rarely.
                Frame::from_bits(0x40_0000 + (state >> 33) % (1 << (state >> 28 & 15))).bits()
            };
            let frames: Vec<u64> = (0..10).map(|_| word()).collect();
            expected.extend(frames.iter().map(|&word| Frame::from_bits(word).lookup_address()));
            code.note_frames(&frames);
        }
        assert_eq!(code.sampled, expected);
        assert!(expected.len() > 5_000);
    }
}
