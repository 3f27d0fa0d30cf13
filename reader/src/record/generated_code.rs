//! Names of code that no loader tells of, saved before they are gone. Processes map parts of files themselves
//! (`second_mappings`), and make code: a just-in-time compiler's map or dump
//! may be removed with the process, and the profile may be read elsewhere.
//!
//! Nothing is read for a process whose samples all lie in modules, and of what is read only the functions that
//! samples hit are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, mem};

use selfwind_profile::profile_file::{Event, GeneratedCode, LentSample, ProcessInfo, SessionInfo};
use selfwind_profile::symbolize::{NameFile, perf_map_path};
use unwind::Frame;

use crate::proc::{self, Mapping};
use crate::record::debugger_interface::{self, DebuggerInterface};
use crate::record::second_mappings;

/// Most addresses that are remembered of a process.
const ADDRESSES_MAX: usize = 1 << 20;
/// Places for addresses that were hit lately, as a power of two.
const LATELY_BITS: u32 = 9;
/// How often the mappings of a process are searched for a dump.
const SEARCH_EVERY: Duration = Duration::from_secs(1);
/// How often at most.
const SEARCHES_MAX: u32 = 30;

/// What is known of the code of all processes that live.
#[derive(Debug, Default)]
pub(crate) struct GeneratedCodeKeeper {
    session: SessionInfo,
    processes: BTreeMap<u32, Followed>,
    /// The process of the last sample.
    last: Option<u32>,
}

/// A process image.
#[derive(Debug, Default)]
struct Followed {
    info: ProcessInfo,
    /// First address and address behind of all modules it ever had.
    modules: BTreeMap<u64, u64>,
    /// Addresses that were hit.
    hit: BTreeSet<u64>,
    /// Some of these, each in the one place that it may have: most are hit again soon.
    lately: Vec<u64>,
    /// Its map and its dump, once found.
    map: Option<NameFile>,
    dump: Option<(PathBuf, NameFile)>,
    searched: Option<Instant>,
    searches: u32,
    /// What it tells debuggers.
    interface: DebuggerInterface,
    /// Modules found that no loader told of.
    mapped: u32,
}

impl GeneratedCodeKeeper {
    /// Takes in a sample, of whose frames so many are those of the sample before it, of whatever process.
    pub(super) fn sample(&mut self, LentSample { sample, frames, shared }: LentSample<'_>) {
        let before = self.last.replace(sample.process);
        let known = if before == self.last { shared } else { 0 };
        let new = frames.get(known..).unwrap_or(&[]);
        match self.processes.get_mut(&sample.process) {
            Some(followed) => followed.hit(new),
            None => self.process(sample.process).hit(new),
        }
    }

    /// Takes in an event other than a sample. Gives what is known of such code, to be stored before that event: modules as they are found,
    /// and before a process ends what it named.
    pub(crate) fn observe(&mut self, event: &Event) -> Vec<Event> {
        match event {
            Event::Session(session) => self.session = session.clone(),
            Event::Process(info) => self.process(info.id).info = info.clone(),
            Event::Module(module) => {
                let end = self.process(module.process).modules.entry(module.start).or_default();
                *end = module.end.max(*end);
            }
            Event::Counters(at) => {
                let followed = self.processes.entry(at.process).or_default();
                return followed.search(&self.session, at.ns);
            }
            Event::ProcessEnd(end) => {
                let followed = self.processes.remove(&end.process).unwrap_or_default();
                return followed.collect(&self.session).into_iter().map(Event::Generated).collect();
            }
            _ => {}
        }
        Vec::new()
    }

    fn process(&mut self, number: u32) -> &mut Followed {
        self.processes.entry(number).or_default()
    }
}

/// Whether `address` is in its place of `lately`, where it is then.
fn is_remembered(lately: &mut [u64], address: u64) -> bool {
    let place = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - LATELY_BITS);
    lately.get_mut(place as usize).is_some_and(|known| mem::replace(known, address) == address)
}

impl Followed {
    /// Notes frames of a sample.
    fn hit(&mut self, frames: &[u64]) {
        if self.lately.is_empty() {
            // No address is that large.
            self.lately.resize(1 << LATELY_BITS, u64::MAX);
        }
        for &word in frames {
            let address = Frame::from_bits(word).lookup_address();
            if !is_remembered(&mut self.lately, address) && self.hit.len() < ADDRESSES_MAX {
                self.hit.insert(address);
            }
        }
    }

    /// The addresses that were hit outside all modules. They may have come before their modules.
    fn outside(&self) -> BTreeSet<u64> {
        let inside = |address: &u64| {
            let before = self.modules.range(..=*address).next_back();
            before.is_some_and(|(_, &end)| *address < end)
        };
        self.hit.iter().copied().filter(|address| !inside(address)).collect()
    }

    fn open(&self, path: &Path, session: &SessionInfo) -> Option<NameFile> {
        NameFile::open(path, self.info.uid, session.realtime_seconds(self.info.start_ns)).ok()
    }

    /// Looks for the files of a living process, before it removes them, for what it has mapped itself, and at what it tells
    /// debuggers. A dump is mapped by its writer, to be found by that.
    fn search(&mut self, session: &SessionInfo, now_ns: u64) -> Vec<Event> {
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
            self.interface.look(self.info.pid, &mappings, now_ns, begun);
        }
        if !due {
            return Vec::new();
        }
        self.searched = Some(Instant::now());
        self.searches += 1;
        self.map = self.map.take().or_else(|| self.open(&perf_map_path(self.info.pid), session));
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

    /// What the process named of the code that was hit.
    fn collect(mut self, session: &SessionInfo) -> Vec<GeneratedCode> {
        let outside = self.outside();
        if outside.is_empty() || self.info.pid == 0 {
            return Vec::new();
        }
        let hit = |start: u64, len: u64| {
            start
                .checked_add(len)
                .is_some_and(|end| start < end && outside.range(start..end).next().is_some())
        };
        let told = mem::take(&mut self.interface).functions(hit);
        let mut events = GeneratedCode::in_parts(self.info.id, Path::new(debugger_interface::SOURCE), told);
        // A dump tells times, so it comes last and counts where both name something.
        let path = perf_map_path(self.info.pid);
        let map = self.map.take().or_else(|| self.open(&path, session));
        if let Some(functions) = map.and_then(|file| file.perf_map(hit).ok()) {
            events.extend(GeneratedCode::in_parts(self.info.id, &path, functions));
        }
        let dump = self.dump.take().or_else(|| {
            let mut places = self.dumps().into_iter();
            places.find_map(|path| self.open(&path, session).map(|file| (path, file)))
        });
        if let Some((path, file)) = dump
            && let Ok(functions) = file.jitdump(hit)
        {
            events.extend(GeneratedCode::in_parts(self.info.id, &path, functions));
        }
        events
    }

    /// Where compilers put dumps.
    fn dumps(&self) -> Vec<PathBuf> {
        let name = format!("jit-{}.dump", self.info.pid);
        let mut places: Vec<PathBuf> = Vec::new();
        places.extend(std::env::current_dir().map(|directory| directory.join(&name)));
        let home = std::env::var_os("JITDUMPDIR").or_else(|| std::env::var_os("HOME"));
        if let Some(home) = home
            && let Ok(entries) = fs::read_dir(Path::new(&home).join(".debug/jit"))
        {
            places.extend(entries.flatten().map(|entry| entry.path().join(&name)));
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_that_was_hit_is_noted() {
        let mut followed = Followed::default();
        let mut state = 1u64;
        let mut expected = BTreeSet::new();
        for _ in 0..20_000 {
            let mut word = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Some often, some seldom.
                Frame::from_bits(0x40_0000 + (state >> 33) % (1 << (state >> 28 & 15))).bits()
            };
            let frames: Vec<u64> = (0..10).map(|_| word()).collect();
            expected.extend(frames.iter().map(|&word| Frame::from_bits(word).lookup_address()));
            followed.hit(&frames);
        }
        assert_eq!(followed.hit, expected);
        assert!(expected.len() > 10 << LATELY_BITS);
    }
}
