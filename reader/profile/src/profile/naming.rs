//! Finds the functions of locations.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::bucket::truncation_mark;
use super::code::{Binary, Function, FunctionId, Location, SourceLine};
use super::contents::Profile;
use super::generated::Generated;
use super::interpreted::{InterpretedFunctions, Shown};
use super::kernel::KernelNames;
use super::stored::StoredNames;
use crate::mapped_memory::mark_name;
use crate::names::{NameId, Names};
use crate::profile_file::{WAKE_LATENCY, WAKE_LATENCY_NAME, WALL_MARKS};
use crate::symbolize::{self, Again, Debuginfod, Origin, Request, SymbolSources, Symbols, hex};

/// Name of code outside all modules, as in perf.
const UNKNOWN: &str = "[unknown]";

/// Names known without reading binaries.
pub(super) struct Known<'a> {
    pub(super) generated: &'a Generated,
    pub(super) interpreted: &'a InterpretedFunctions,
    pub(super) kernel: &'a KernelNames,
    /// Those stored in the profile.
    pub(super) stored: Option<&'a StoredNames>,
}

/// Names all locations.
pub(super) fn name(profile: &mut Profile, known: &Known<'_>, sources: &SymbolSources) {
    let Known { generated, interpreted, kernel, stored } = *known;
    let mut by_binary: Vec<Vec<(u64, u32)>> = vec![Vec::new(); profile.binaries.len()];
    let mut functions = Functions::default();
    for location in 0..profile.locations.len() {
        let Location { binary, address, .. } = profile.locations[location];
        if let Some(shown) = interpreted.find(binary, address, sources.interpreted) {
            adopt_interpreted(profile, &mut functions, location, binary, &shown);
            continue;
        }
        match binary {
            Some(binary) if profile.binaries[binary as usize].origin.is_none() => {
                by_binary[binary as usize].push((address, location as u32));
            }
            _ => {
                let in_kernel = binary.is_some_and(|binary| profile.kernel_binaries.contains(&binary));
                let known = match binary {
                    _ if in_kernel => kernel.find(address),
                    None if address == WAKE_LATENCY => Some(WAKE_LATENCY_NAME),
                    None if address >= WALL_MARKS => mark_name(address).or_else(|| kernel.find(address)),
                    binary => binary.and_then(|binary| generated.find(binary, address)),
                };
                let name = profile.names.intern(known.unwrap_or(UNKNOWN));
                let binary = binary.filter(|_| in_kernel || known.is_some());
                let function = functions.intern(profile, Function { name, binary });
                let first = profile.lines.len() as u32;
                profile.lines.push(SourceLine {
                    function,
                    linkage: name,
                    file: None,
                    line: 0,
                    inlined: false,
                });
                profile.locations[location].lines = first..first + 1;
            }
        }
    }
    by_binary.iter_mut().for_each(|addresses| addresses.sort_unstable());
    let answers = answers(profile, &by_binary, stored, sources);
    for ((binary, addresses), symbols) in by_binary.iter().enumerate().zip(answers) {
        if let Some(symbols) = symbols {
            adopt(profile, &mut functions, binary, addresses, symbols);
        }
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

/// Adds a line of an interpreted function to the profile.
fn adopt_interpreted(
    profile: &mut Profile,
    functions: &mut Functions,
    location: usize,
    binary: Option<u32>,
    shown: &Shown<'_>,
) {
    let name = profile.names.intern(&shown.name);
    let file = shown.file.map(|file| profile.names.intern(file));
    let function = functions.intern(profile, Function { name, binary });
    let first = profile.lines.len() as u32;
    profile.lines.push(SourceLine { function, linkage: name, file, line: shown.line, inlined: false });
    profile.locations[location].lines = first..first + 1;
}

/// The names of the sampled addresses of each binary: those stored in the profile or, if there are none or a new look-up was
/// requested, those found now.
fn answers(
    profile: &mut Profile,
    by_binary: &[Vec<(u64, u32)>],
    stored: Option<&StoredNames>,
    sources: &SymbolSources,
) -> Vec<Option<Symbols>> {
    let mut answers = Vec::with_capacity(by_binary.len());
    let mut requests = Vec::new();
    for (index, addresses) in by_binary.iter().enumerate() {
        let all: Vec<u64> = addresses.iter().map(|&(address, _)| address).collect();
        let binary = &profile.binaries[index];
        let known = stored.filter(|_| !all.is_empty()).and_then(|stored| stored.answer(binary, &all));
        let wanted = known.as_ref().is_none_or(|known| {
            known.ranges.iter().any(Range::is_empty)
                || match sources.again {
                    Again::Never => false,
                    Again::Better => !matches!(known.origin, Origin::Dwarf(_)),
                    Again::Always => true,
                }
        });
        if wanted && !all.is_empty() {
            let Binary { path, build_id, file, .. } = binary.clone();
            requests.push((index, Request { path, build_id, file, addresses: all }));
        }
        answers.push(known);
    }
    if !requests.is_empty()
        && let Some(problem) = sources.debuginfod.as_ref().and_then(Debuginfod::problem)
    {
        profile.notes.push(problem);
    }
    let (indexes, requests): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
    for ((index, request), found) in
        indexes.into_iter().zip(&requests).zip(symbolize::symbolize(&requests, sources))
    {
        match &mut answers[index] {
            Some(known) if known.origin.rank() > found.origin.rank() => {
                found.fill(known, &request.addresses, &request.addresses);
            }
            answer => *answer = Some(found),
        }
    }
    answers
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

/// Adds the names of one binary to the profile.
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
    // In the order of addresses, so that numbering does not depend on where names come from.
    for (&(_, location), range) in addresses.iter().zip(&symbols.ranges) {
        let first = profile.lines.len() as u32;
        for line in &symbols.lines[range.start as usize..range.end as usize] {
            let name = rename(&mut profile.names, line.function);
            let file = line.file.map(|file| rename(&mut profile.names, file));
            let function = functions.intern(profile, Function { name, binary: Some(binary as u32) });
            let linkage = rename(&mut profile.names, line.linkage);
            profile.lines.push(SourceLine {
                function,
                linkage,
                file,
                line: line.line,
                inlined: line.inlined,
            });
        }
        profile.locations[location as usize].lines = first..profile.lines.len() as u32;
    }
    let path = profile.binaries[binary].path.display();
    match &symbols.origin {
        Origin::Changed(_) if profile.binaries[binary].build_id.is_empty() => profile.notes.push(format!(
            "{path}: the file has changed since the recording (no build-id, and another size or time); shown as module+0xoffset",
        )),
        Origin::Changed(found) => profile.notes.push(format!(
            "{path}: the file has changed since the recording (build-id {} recorded, {} found); shown as module+0xoffset",
            hex(&profile.binaries[binary].build_id),
            if found.is_empty() { "none".into() } else { hex(found) },
        )),
        Origin::Unreadable(why) => profile.notes.push(format!("{path}: {why}; shown as module+0xoffset")),
        Origin::Dwarf(_) | Origin::Symbols | Origin::Stripped | Origin::PerfMap => {}
    }
    profile.binaries[binary].read = symbols.read;
    profile.binaries[binary].origin = Some(symbols.origin);
}
