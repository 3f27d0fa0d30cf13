//! From locations to functions.

use std::collections::{BTreeSet, HashMap};

use super::generated::Generated;
use super::kernel::KernelNames;
use super::{Binary, Function, FunctionId, Location, Place, Profile, truncation_mark};
use crate::names::{NameId, Names};
use crate::profile_file::{WAKE_LATENCY, WAKE_LATENCY_NAME};
use crate::symbolize::{self, Debuginfod, Origin, Request, SymbolSources, Symbols, hex};

/// Code outside all modules, as perf names it.
const UNKNOWN: &str = "[unknown]";

/// Names all locations.
pub(super) fn name(
    profile: &mut Profile,
    generated: &Generated,
    kernel: &KernelNames,
    sources: &SymbolSources,
) {
    let mut by_binary: Vec<Vec<(u64, u32)>> = vec![Vec::new(); profile.binaries.len()];
    let mut functions = Functions::default();
    for place in 0..profile.locations.len() {
        let Location { binary, address, .. } = profile.locations[place];
        match binary {
            Some(binary) if profile.binaries[binary as usize].origin.is_none() => {
                by_binary[binary as usize].push((address, place as u32));
            }
            _ => {
                let in_kernel = binary.is_some_and(|binary| profile.kernel_binaries.contains(&binary));
                let known = match binary {
                    _ if in_kernel => kernel.find(address),
                    None if address == WAKE_LATENCY => Some(WAKE_LATENCY_NAME),
                    binary => binary.and_then(|binary| generated.find(binary, address)),
                };
                let name = profile.names.intern(known.unwrap_or(UNKNOWN));
                let binary = binary.filter(|_| in_kernel || known.is_some());
                let function = functions.intern(profile, Function { name, binary });
                let first = profile.places.len() as u32;
                profile.places.push(Place { function, linkage: name, file: None, line: 0, inlined: false });
                profile.locations[place].places = first..first + 1;
            }
        }
    }
    let mut hit = Vec::new();
    let mut requests = Vec::new();
    for (binary, mut addresses) in by_binary.into_iter().enumerate().filter(|(_, list)| !list.is_empty()) {
        addresses.sort_unstable();
        let Binary { path, build_id, .. } = profile.binaries[binary].clone();
        requests.push(Request { path, build_id, addresses: addresses.iter().map(|&(a, _)| a).collect() });
        hit.push((binary, addresses));
    }
    if !requests.is_empty()
        && let Some(problem) = sources.debuginfod.as_ref().and_then(Debuginfod::problem)
    {
        profile.notes.push(problem);
    }
    let answers = symbolize::symbolize(&requests, sources);
    for ((binary, addresses), symbols) in hit.into_iter().zip(answers) {
        adopt(profile, &mut functions, binary, &addresses, symbols);
    }
    let ends: BTreeSet<u8> = profile.stacks.iter().map(|stack| stack.end).collect();
    for end in ends {
        if let Some(mark) = truncation_mark(end) {
            let name = profile.names.intern(&mark);
            let function = functions.intern(profile, Function { name, binary: None });
            profile.truncated.push((end, function));
        }
    }
}

/// Functions interned by name and binary.
#[derive(Default)]
struct Functions(HashMap<Function, FunctionId>);

impl Functions {
    fn intern(&mut self, profile: &mut Profile, function: Function) -> FunctionId {
        *self.0.entry(function).or_insert_with(|| {
            profile.functions.push(function);
            FunctionId(profile.functions.len() as u32 - 1)
        })
    }
}

/// Takes the names of one binary into the profile.
fn adopt(
    profile: &mut Profile,
    functions: &mut Functions,
    binary: usize,
    addresses: &[(u64, u32)],
    symbols: Symbols,
) {
    let mut renamed: HashMap<NameId, NameId> = HashMap::new();
    let mut rename = |names: &mut Names, id: NameId| {
        *renamed.entry(id).or_insert_with(|| names.intern(symbols.names.get(id)))
    };
    let first = profile.places.len() as u32;
    for line in &symbols.lines {
        let name = rename(&mut profile.names, line.function);
        let file = line.file.map(|file| rename(&mut profile.names, file));
        let function = functions.intern(profile, Function { name, binary: Some(binary as u32) });
        let linkage = rename(&mut profile.names, line.linkage);
        profile.places.push(Place { function, linkage, file, line: line.line, inlined: line.inlined });
    }
    for (&(_, location), range) in addresses.iter().zip(&symbols.ranges) {
        profile.locations[location as usize].places = first + range.start..first + range.end;
    }
    let path = profile.binaries[binary].path.display();
    match &symbols.origin {
        Origin::Changed(found) => profile.notes.push(format!(
            "{path}: the file has changed since (build-id {} recorded, {} found); shown as module+0xoffset",
            hex(&profile.binaries[binary].build_id),
            if found.is_empty() { "none".into() } else { hex(found) },
        )),
        Origin::Unreadable(why) => profile.notes.push(format!("{path}: {why}; shown as module+0xoffset")),
        Origin::Dwarf(_) | Origin::Symbols | Origin::Stripped | Origin::PerfMap => {}
    }
    profile.binaries[binary].read = symbols.read;
    profile.binaries[binary].origin = Some(symbols.origin);
}
