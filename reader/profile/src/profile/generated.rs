//! Generated code: addresses outside all modules, named by the process itself.
//!
//! The names are in the profile, each function a mapping in the history of its process. A profile whose
//! recorder could not read them may still meet the map that the process left.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use super::{Binary, Location, Process, Profile};
use crate::mappings::{History, Mapping};
use crate::profile_file::{GeneratedCode, GeneratedFunction, ProcessInfo};
use crate::symbolize::{NameFile, Origin, perf_map_path};

/// Numbers of generated functions among the mappings of a process go down from here, those of modules up from 0.
const NUMBERS: u32 = u32::MAX;
/// Addresses of programs are below this power of two. What is above tells the functions apart that took each
/// other's place.
const SPACE: u32 = 47;
/// Most functions at a place that are told apart.
const MOST_TURNS: u64 = 1 << (63 - SPACE);

/// Generated functions by the address that stands for theirs.
#[derive(Debug, Default)]
pub(super) struct Generated {
    /// By binary, and in it by first address: address behind and name.
    functions: HashMap<u32, BTreeMap<u64, (u64, String)>>,
    /// By place of the process.
    told: HashMap<u32, Told>,
    /// By place of the process: the binary that stands for the map it left, if there is one.
    left: HashMap<u32, Option<u32>>,
    /// All that can be known is in the profile.
    complete: bool,
}

/// What a process told of its code.
#[derive(Debug, Default)]
struct Told {
    /// The binary that stands for each file.
    binaries: HashMap<PathBuf, u32>,
    /// First address and address behind of all functions, where each place has only its first one.
    places: BTreeMap<u64, u64>,
    functions: u32,
    turns: u64,
}

impl Told {
    /// 0 for the first function at a place.
    fn turn(&mut self, start: u64, end: u64) -> u64 {
        let before = self.places.range(..end).next_back();
        if before.is_some_and(|(_, &behind)| behind > start) {
            self.turns = (self.turns + 1).min(MOST_TURNS - 1);
            return self.turns;
        }
        self.places.insert(start, end);
        0
    }
}

fn stand_in(profile: &mut Profile, path: PathBuf) -> u32 {
    let origin = Some(Origin::PerfMap);
    profile.binaries.push(Binary { path, build_id: Vec::new(), file: None, origin, read: true });
    profile.binaries.len() as u32 - 1
}

impl Generated {
    /// No map that a process left is read: the names were added to the profile, and with them those of such maps.
    pub(super) fn is_complete(&mut self) {
        self.complete = true;
    }

    /// Takes in functions of a process that are told in the profile.
    pub(super) fn learn(
        &mut self,
        profile: &mut Profile,
        process: u32,
        history: &mut History,
        code: GeneratedCode,
    ) {
        let told = self.told.entry(process).or_default();
        let GeneratedCode { source, functions, .. } = code;
        let binary =
            *told.binaries.entry(source).or_insert_with_key(|path| stand_in(profile, path.to_owned()));
        for GeneratedFunction { since_ns, start, len, name } in functions {
            let end = start.saturating_add(len);
            if end >> SPACE != 0 || len == 0 {
                continue;
            }
            let turn = told.turn(start, end) << SPACE;
            let bias = 0u64.wrapping_sub(turn);
            history.map(NUMBERS - told.functions, since_ns, Mapping { start, end, bias, binary });
            told.functions = (told.functions + 1).min(NUMBERS / 2);
            self.functions.entry(binary).or_default().insert(start + turn, (end + turn, name));
        }
    }

    /// True if code outside all modules may have names of this process alone.
    pub(super) fn is_of(&self, process: u32, info: &ProcessInfo) -> bool {
        self.told.contains_key(&process)
            || !self.complete && info.pid != 0 && perf_map_path(info.pid).exists()
    }

    /// The binary that stands for the generated code of a process that told nothing of it.
    pub(super) fn binary(&mut self, profile: &mut Profile, process: u32) -> Option<u32> {
        if self.complete || self.told.contains_key(&process) {
            return None;
        }
        if let Some(&known) = self.left.get(&process) {
            return known;
        }
        let binary = read(profile, process).map(|(path, functions)| {
            let binary = stand_in(profile, path);
            let by_address = self.functions.entry(binary).or_default();
            // Of functions at the same place the later one counts.
            for GeneratedFunction { start, len, name, .. } in functions {
                by_address.insert(start, (start.saturating_add(len), name));
            }
            binary
        });
        self.left.insert(process, binary);
        binary
    }

    /// The generated function at an address.
    pub(super) fn find(&self, binary: u32, address: u64) -> Option<&str> {
        self.function(binary, address).map(|(_, _, name)| name)
    }

    /// First address, address behind, and name of the function at an address.
    fn function(&self, binary: u32, address: u64) -> Option<(u64, u64, &str)> {
        let (&start, (end, name)) = self.functions.get(&binary)?.range(..=address).next_back()?;
        (address < *end).then_some((start, *end, name))
    }

    /// What was found in maps that processes left, of functions that were hit, to be told in the profile.
    pub(super) fn found(&self, profile: &Profile) -> Vec<GeneratedCode> {
        let mut hit: BTreeMap<u32, BTreeMap<u64, (u64, &str)>> = BTreeMap::new();
        for Location { binary, address, .. } in &profile.locations {
            if let Some(binary) = *binary
                && let Some((start, end, name)) = self.function(binary, *address)
            {
                hit.entry(binary).or_default().insert(start, (end, name));
            }
        }
        let left = self.left.iter().filter_map(|(&process, &binary)| Some((process, binary?)));
        let mut left: Vec<(u32, u32)> = left.collect();
        left.sort_unstable();
        let code = left.into_iter().flat_map(|(process, binary)| {
            let functions = hit.remove(&binary).unwrap_or_default().into_iter();
            let functions = functions.map(|(start, (end, name))| GeneratedFunction {
                since_ns: 0,
                start,
                len: end - start,
                name: name.to_owned(),
            });
            let process = profile.processes[process as usize].info.id;
            GeneratedCode::in_parts(process, &profile.binaries[binary as usize].path, functions)
        });
        code.collect()
    }
}

/// Reads the map that a process left.
fn read(profile: &Profile, process: u32) -> Option<(PathBuf, Vec<GeneratedFunction>)> {
    let Profile { session, processes, .. } = profile;
    let Process { info } = processes.get(process as usize)?;
    if session.started_realtime_ns == 0 || info.pid == 0 {
        return None; // without a time, a map cannot be told from that of an earlier process
    }
    let path = perf_map_path(info.pid);
    let file = NameFile::open(&path, info.uid, session.realtime_seconds(info.start_ns)).ok()?;
    Some((path, file.perf_map(|_, _| true).ok()?))
}
