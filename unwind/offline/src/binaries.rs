//! All files that processes map, each once.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::Path;

use typed_arena::Arena;
use unwind::Table;

use crate::binary::{Binary, Contents};
use crate::search::Search;

/// Room for the files that processes map: what is read of one is shared by all, and lives as long as this.
#[derive(Default)]
pub struct Binaries {
    search: Search,
    arena: Arena<Binary>,
    /// How many were read, or could not be.
    reads: Cell<u64>,
}

impl Binaries {
    /// None yet; they will be looked for as `search` says.
    pub fn new(search: Search) -> Self {
        Self { search, arena: Arena::new(), reads: Cell::new(0) }
    }

    /// What unwinding needs of a file, which is read now if it was not before.
    pub(crate) fn read<'b>(&self, binary: &'b Binary) -> Option<&'b Contents> {
        if !binary.is_read() {
            self.reads.set(self.reads.get() + 1);
        }
        binary.read(&self.search)
    }

    /// A number that grows with each file that is read.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.get()
    }
}

/// The files by their names and build-ids.
pub(crate) struct Index<'a> {
    binaries: &'a Binaries,
    by_name: HashMap<Box<Path>, Vec<&'a Binary>>,
    /// The rows of files that were read, by the place of the file in memory.
    tables: HashMap<*const Binary, Option<Table<'a>>>,
}

impl<'a> Index<'a> {
    pub(crate) fn new(binaries: &'a Binaries) -> Self {
        Self { binaries, by_name: HashMap::new(), tables: HashMap::new() }
    }

    pub(crate) fn binaries(&self) -> &'a Binaries {
        self.binaries
    }

    /// The rows of a file that was read.
    pub(crate) fn table(&mut self, binary: &'a Binary) -> Option<Table<'a>> {
        let find = || binary.contents().and_then(Contents::table);
        *self.tables.entry(std::ptr::from_ref(binary)).or_insert_with(find)
    }

    /// The file with this name and build-id, which is empty if none was told.
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

    /// All of them, in no order.
    pub(crate) fn all(&self) -> Vec<&'a Binary> {
        self.by_name.values().flatten().copied().collect()
    }
}
