//! Names stored in the profile, and names to be stored in it.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::ffi::OsStrExt;

use super::code::{Binary, BinaryKey, Location, SourceLine};
use super::contents::Profile;
use crate::profile_file::{NameSection, NameSectionWriter, NamedFrame, StoredBinary, StoredOrigin};
use crate::symbolize::{Line, Origin, Symbols};

/// The names in a profile file.
#[derive(Debug)]
pub(super) struct StoredNames {
    section: NameSection,
    binaries: HashMap<BinaryKey, usize>,
}

impl StoredNames {
    pub(super) fn new(section: NameSection) -> Self {
        let key = |(index, binary): (usize, &StoredBinary)| {
            (Binary::key(&binary.path, &binary.build_id, binary.file), index)
        };
        let binaries = section.binaries.iter().enumerate().map(key).collect();
        Self { section, binaries }
    }

    /// The stored names of ascending addresses of a binary; addresses without stored names have none.
    pub(super) fn answer(&self, binary: &Binary, addresses: &[u64]) -> Option<Symbols> {
        let key = Binary::key(&binary.path, &binary.build_id, binary.file);
        let stored = &self.section.binaries[*self.binaries.get(&key)?];
        let mut symbols = Symbols::new(origin(&stored.origin)?, addresses.len());
        for address in addresses {
            let first = symbols.lines.len() as u32;
            if let Ok(index) = stored.addresses.binary_search(address) {
                let begin = if index == 0 { 0 } else { stored.ends[index - 1] } as usize;
                for &frame in &stored.frames[begin..stored.ends[index] as usize] {
                    let frame = self.section.frames[frame as usize];
                    let mut name = |text: u32| symbols.names.intern(&self.section.texts[text as usize]);
                    let (function, linkage) = (name(frame.function), name(frame.linkage));
                    let file = frame.file.map(name);
                    let (line, inlined) = (frame.line, frame.inlined);
                    symbols.lines.push(Line { function, linkage, file, line, inlined });
                }
            }
            symbols.ranges.push(first..symbols.lines.len() as u32);
        }
        Some(symbols)
    }
}

fn origin(stored: &StoredOrigin) -> Option<Origin> {
    Some(match stored.kind {
        0 => Origin::Dwarf(stored.file()),
        1 => Origin::Symbols,
        2 => Origin::Stripped,
        3 => Origin::Changed(stored.detail.clone()),
        4 => Origin::Unreadable(String::from_utf8_lossy(&stored.detail).into_owned()),
        _ => return None,
    })
}

fn stored_origin(origin: &Origin) -> Option<StoredOrigin> {
    let (kind, detail) = match origin {
        Origin::Dwarf(path) => (0, path.as_os_str().as_bytes()),
        Origin::Symbols => (1, &b""[..]),
        Origin::Stripped => (2, &b""[..]),
        Origin::Changed(found) => (3, found.as_slice()),
        Origin::Unreadable(why) => (4, why.as_bytes()),
        Origin::PerfMap => return None,
    };
    Some(StoredOrigin { kind, detail: detail.to_vec() })
}

/// The names of all addresses in binaries, as a section of the profile file.
pub(super) fn section(profile: &Profile) -> Vec<u8> {
    let mut addresses: BTreeMap<u32, Vec<(u64, u32)>> = BTreeMap::new();
    for (location, Location { binary, address, .. }) in profile.locations.iter().enumerate() {
        if let Some(binary) = binary.filter(|binary| !profile.kernel_binaries.contains(binary)) {
            addresses.entry(binary).or_default().push((*address, location as u32));
        }
    }
    let mut writer = NameSectionWriter::default();
    for (binary, mut addresses) in addresses {
        let Binary { path, build_id, file, origin, .. } = &profile.binaries[binary as usize];
        let Some(origin) = origin.as_ref().and_then(stored_origin) else { continue };
        let (path, build_id, file) = (path.clone(), build_id.clone(), *file);
        writer.binary(&StoredBinary { path, build_id, file, origin, ..StoredBinary::default() });
        addresses.sort_unstable();
        for (address, location) in addresses {
            let frame = |line: &SourceLine| NamedFrame {
                function: profile.function_name(line.function),
                linkage: profile.names.get(line.linkage),
                file: line.file.map(|file| profile.names.get(file)),
                line: line.line,
                inlined: line.inlined,
            };
            writer.address(address, profile.lines_of(location).iter().map(frame));
        }
    }
    writer.finish()
}
