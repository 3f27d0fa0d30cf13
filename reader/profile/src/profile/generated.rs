//! Generated code: addresses outside all modules, named by the process itself.
//!
//! The names are in the profile, where each function is a mapping in the history of its process. If the recorder could not read
//! them, the perf map left by the process is used if it still exists.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use super::code::{Binary, Location};
use super::contents::Profile;
use super::process::Process;
use crate::mappings::{History, Mapping};
use crate::profile_file::{GeneratedCode, GeneratedFunction, ProcessInfo};
use crate::symbolize::{NameFile, Origin, perf_map_path};

/// Generated functions are numbered down from here among the mappings of a process, modules up from 0.
const NUMBERS: u32 = u32::MAX;
/// User addresses are below this power of two. Higher bits distinguish functions that replaced each other at an address.
const SPACE: u32 = 47;
/// Maximum number of functions at an address that are distinguished.
const MOST_TURNS: u64 = 1 << (63 - SPACE);

/// Generated functions by their substitute address.
#[derive(Debug, Default)]
pub(super) struct Generated {
    /// End address and name, by binary and start address.
    functions: HashMap<u32, BTreeMap<u64, (u64, String)>>,
    /// By process index.
    told: HashMap<u32, Told>,
    /// By process index: the pseudo-binary for the perf map it left, if there is one.
    left: HashMap<u32, Option<u32>>,
    /// The profile contains all names that can be known.
    complete: bool,
}

/// What a process reported about its code.
#[derive(Debug, Default)]
struct Told {
    /// The pseudo-binary for each file.
    binaries: HashMap<PathBuf, u32>,
    /// Address ranges of all functions, only the first one at each address.
    ranges: BTreeMap<u64, u64>,
    functions: u32,
    turns: u64,
}

impl Told {
    /// 0 for the first function at an address.
    fn turn(&mut self, start: u64, end: u64) -> u64 {
        let before = self.ranges.range(..end).next_back();
        if before.is_some_and(|(_, &behind)| behind > start) {
            self.turns = (self.turns + 1).min(MOST_TURNS - 1);
            return self.turns;
        }
        self.ranges.insert(start, end);
        0
    }
}

fn stand_in(profile: &mut Profile, path: PathBuf) -> u32 {
    let origin = Some(Origin::PerfMap);
    profile.binaries.push(Binary { path, build_id: Vec::new(), file: None, origin, read: true });
    profile.binaries.len() as u32 - 1
}

impl Generated {
    /// Notes that perf maps need not be read: their names were added to the profile.
    pub(super) fn is_complete(&mut self) {
        self.complete = true;
    }

    /// Adds functions of a process that are in the profile.
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

    /// True if code outside all modules may have names specific to this process.
    pub(super) fn is_of(&self, process: u32, info: &ProcessInfo) -> bool {
        self.told.contains_key(&process)
            || !self.complete && info.pid != 0 && perf_map_path(info.pid).exists()
    }

    /// The pseudo-binary for the generated code of a process that reported nothing about it.
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
            // Of functions at the same address, the last one counts.
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

    /// The sampled functions found in perf maps that processes left, to be stored in the profile.
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

/// Reads the perf map that a process left.
fn read(profile: &Profile, process: u32) -> Option<(PathBuf, Vec<GeneratedFunction>)> {
    let Profile { session, processes, .. } = profile;
    let Process { info } = processes.get(process as usize)?;
    if session.started_realtime_ns == 0 || info.pid == 0 {
        return None; // without a time, a map cannot be told from that of an earlier process
    }
    let path = perf_map_path(info.pid);
    let file = NameFile::open(&path, info.uid, session.realtime_seconds(info.start_ns)).ok()?;
    Some((path, file.perf_map(|_, _| true, |_| 0).ok()?))
}
