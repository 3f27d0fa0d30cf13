//! The ELF files that the processes map. Each is read once and shared by every process that maps it.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::Path;

use typed_arena::Arena;
use unwind::Table;

use crate::binary::{Binary, Contents};
use crate::search::Search;

/// The set of mapped files. What is read from a file is shared by all processes and lives as long as this set.
#[derive(Default)]
pub struct Binaries {
    search: Search,
    arena: Arena<Binary>,
    /// Number of attempts to read a file, successful or not.
    reads: Cell<u64>,
}

impl Binaries {
    /// An empty set; `search` says where files are looked for.
    pub fn new(search: Search) -> Self {
        Self { search, arena: Arena::new(), reads: Cell::new(0) }
    }

    /// The unwind information of a file, read at the first call.
    pub(crate) fn read<'b>(&self, binary: &'b Binary) -> Option<&'b Contents> {
        if !binary.is_read() {
            self.reads.set(self.reads.get() + 1);
        }
        binary.read(&self.search)
    }

    /// Incremented with each attempt to read a file, so that a caller can tell whether its modules are out of date.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.get()
    }
}

/// The files by name and build-id.
pub(crate) struct Index<'a> {
    binaries: &'a Binaries,
    by_name: HashMap<Box<Path>, Vec<&'a Binary>>,
    /// Parsed tables of the files read so far, by the address of their `Binary`.
    tables: HashMap<*const Binary, Option<Table<'a>>>,
}

impl<'a> Index<'a> {
    pub(crate) fn new(binaries: &'a Binaries) -> Self {
        Self { binaries, by_name: HashMap::new(), tables: HashMap::new() }
    }

    pub(crate) fn binaries(&self) -> &'a Binaries {
        self.binaries
    }

    /// The table of a file that has been read.
    pub(crate) fn table(&mut self, binary: &'a Binary) -> Option<Table<'a>> {
        let find = || binary.contents().and_then(Contents::table);
        *self.tables.entry(std::ptr::from_ref(binary)).or_insert_with(find)
    }

    /// The file with this name and build-id. An empty build-id means that none is known.
    pub(crate) fn get(&mut self, path: &Path, build_id: &[u8]) -> &'a Binary {
        if let Some(known) = self.by_name.get(path)
            && let Some(binary) = known.iter().find(|binary| binary.told_build_id() == build_id)
        {
            return binary;
        }
        let binary = &*self.binaries.arena.alloc(Binary::new(path, build_id));
        self.by_name.entry(path.into()).or_default().push(binary);
        binary
    }

    /// All files, in no particular order.
    pub(crate) fn all(&self) -> Vec<&'a Binary> {
        self.by_name.values().flatten().copied().collect()
    }
}
