//! Stores the names of the running kernel's functions in the profile.
//!
//! The addresses are valid until the next boot only and hidden from most users. So the recorder, which may have more
//! privileges than whoever reads the profile, stores each function once, before the first sample that contains it.

use std::collections::HashSet;

use selfwind_profile::profile_file::{KernelSymbol, Sample, WALL_MARKS};

use crate::record::kernel_table::KernelTable;

/// Finds the functions of kernel stacks.
#[derive(Default)]
pub(crate) struct KernelSymbols {
    /// The cached table of the kernel proper, without modules.
    cached: Option<KernelTable>,
    /// The complete table.
    table: Option<KernelTable>,
    seen: HashSet<u64>,
    reported: HashSet<u64>,
}

impl KernelSymbols {
    /// The functions of a sample that were not returned before.
    pub(crate) fn new_symbols(&mut self, sample: &Sample) -> Vec<KernelSymbol> {
        let mut new = Vec::new();
        let frames = sample.kernel.iter().flat_map(|kernel| &kernel.frames);
        for &address in frames.filter(|&&address| address < WALL_MARKS) {
            if self.seen.insert(address)
                && let Some(symbol) = self.find(address)
                && self.reported.insert(symbol.start)
            {
                new.push(symbol);
            }
        }
        new
    }

    /// The function at an address.
    pub(crate) fn find(&mut self, address: u64) -> Option<KernelSymbol> {
        let cached = self.cached.get_or_insert_with(KernelTable::cached).find(address);
        cached.or_else(|| self.table().find(address))
    }

    /// True if there were kernel stacks and /proc/kallsyms hides the names.
    pub(super) fn names_are_hidden(&self) -> bool {
        !self.seen.is_empty() && self.table.as_ref().is_some_and(KernelTable::is_empty)
    }

    fn table(&mut self) -> &KernelTable {
        self.table.get_or_insert_with(|| {
            let table = KernelTable::read();
            table.store();
            table
        })
    }
}
