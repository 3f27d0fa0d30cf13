//! Requests and answers of symbolization: addresses of a binary, and the functions there.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

use crate::names::{NameId, Names};
use crate::profile_file::FileIdentity;

/// A binary and the addresses to be named in it.
#[derive(Debug, Clone)]
pub struct Request {
    /// Its path during the recording.
    pub path: PathBuf,
    /// Its build-id; empty if it had none.
    pub build_id: Vec<u8>,
    /// The identity of the file, if it had no build-id and could be read.
    pub file: Option<FileIdentity>,
    /// Virtual addresses as its ELF file numbers them; ascending, without duplicates.
    pub addresses: Vec<u64>,
}

/// A function at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Readable name.
    pub function: NameId,
    /// Linkage name; the readable one if there is no other.
    pub linkage: NameId,
    /// Source file.
    pub file: Option<NameId>,
    /// Source line, 0 if unknown.
    pub line: u32,
    /// It is inlined into the next one.
    pub inlined: bool,
}

/// Where the names of a binary come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// DWARF in this file, symbol tables for the rest.
    Dwarf(PathBuf),
    /// Symbol tables.
    Symbols,
    /// A map of generated code.
    PerfMap,
    /// The file has no names.
    Stripped,
    /// The file has been replaced; the build-id of the new one, if any.
    Changed(Vec<u8>),
    /// The file cannot be read; the reason.
    Unreadable(String),
}

impl Origin {
    /// Quality of the source: higher is better.
    pub fn rank(&self) -> u8 {
        match self {
            Origin::Dwarf(_) => 3,
            Origin::Symbols | Origin::PerfMap => 2,
            Origin::Stripped => 1,
            Origin::Changed(_) | Origin::Unreadable(_) => 0,
        }
    }
}

/// The names of the addresses of one binary.
#[derive(Debug)]
pub struct Symbols {
    /// The texts that `lines` refer to.
    pub names: Names,
    /// The functions of each requested address, in its order: innermost first, never empty.
    pub ranges: Vec<Range<u32>>,
    /// The functions that `ranges` refer to.
    pub lines: Vec<Line>,
    /// Where the names come from.
    pub origin: Origin,
    /// Its files were read, because not every answer was in the cache.
    pub read: bool,
}

impl Symbols {
    /// Without answers, with capacity for some.
    pub fn new(origin: Origin, room: usize) -> Self {
        let ranges = Vec::with_capacity(room);
        Symbols { names: Names::default(), ranges, lines: Vec::with_capacity(room), origin, read: false }
    }

    /// Copies these answers, for the addresses `own`, into the answers for `all` where those have none. `all` contains
    /// `own`; both ascend.
    pub fn fill(&self, into: &mut Symbols, all: &[u64], own: &[u64]) {
        let mut renamed: HashMap<NameId, NameId> = HashMap::new();
        let mut entries = all.iter().enumerate();
        for (address, range) in own.iter().zip(&self.ranges) {
            let Some((index, _)) = entries.find(|&(_, other)| other == address) else { return };
            if !into.ranges[index].is_empty() {
                continue;
            }
            let first = into.lines.len() as u32;
            for line in &self.lines[range.start as usize..range.end as usize] {
                let mut rename =
                    |id| *renamed.entry(id).or_insert_with(|| into.names.intern(self.names.get(id)));
                let (function, linkage) = (rename(line.function), rename(line.linkage));
                let file = line.file.map(rename);
                into.lines.push(Line { function, linkage, file, ..*line });
            }
            into.ranges[index] = first..into.lines.len() as u32;
        }
    }
}
