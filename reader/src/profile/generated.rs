//! Generated code: addresses outside all modules, named by the process itself.

use std::collections::HashMap;

use super::{Binary, Process, Profile};
use crate::symbolize::{Origin, PerfMap};

/// The maps of generated code, read for processes that ran any.
#[derive(Debug, Default)]
pub(super) struct Generated {
    /// By place of the process: the binary that stands for its map, if it has one.
    binaries: HashMap<u32, Option<u32>>,
    /// By that binary.
    maps: HashMap<u32, PerfMap>,
}

impl Generated {
    /// The binary that stands for the generated code of a process.
    pub(super) fn binary(&mut self, profile: &mut Profile, process: u32) -> Option<u32> {
        if let Some(&known) = self.binaries.get(&process) {
            return known;
        }
        let binary = read(profile, process).map(|(path, map)| {
            let binary = profile.binaries.len() as u32;
            profile.binaries.push(Binary { path, build_id: Vec::new(), origin: Some(Origin::PerfMap) });
            self.maps.insert(binary, map);
            binary
        });
        self.binaries.insert(process, binary);
        binary
    }

    /// The generated function at an address.
    pub(super) fn find(&self, binary: u32, address: u64) -> Option<&str> {
        self.maps.get(&binary)?.find(address)
    }
}

/// Reads the map of a process.
fn read(profile: &Profile, process: u32) -> Option<(std::path::PathBuf, PerfMap)> {
    let Profile { session, processes, .. } = profile;
    let Process { info } = &processes[process as usize];
    if session.started_realtime_ns == 0 || info.pid == 0 {
        return None; // without a time, a map cannot be told from that of an earlier process
    }
    let after = (info.start_ns as i64).saturating_sub(session.started_ns as i64);
    let since = (session.started_realtime_ns as i64).saturating_add(after) / 1_000_000_000;
    let path = PerfMap::path(info.pid);
    let map = PerfMap::read(&path, info.uid, since).ok()?;
    Some((path, map))
}
