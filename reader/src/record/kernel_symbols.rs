//! Stores the names of the running kernel's functions in the profile.
//!
//! The addresses are valid until the next boot only and hidden from most users. So the recorder, which may have more
//! privileges than whoever reads the profile, stores each function once, before the first sample that contains it.

use std::collections::HashSet;
use std::io;

use nix::unistd::geteuid;
use selfwind_profile::profile_file::{KernelSymbol, Sample, WALL_MARKS};

use crate::record::kernel_table::KernelTable;
use crate::target::shortage;

/// Finds the functions of kernel stacks.
#[derive(Default)]
pub(crate) struct KernelSymbols {
    /// The cached table of the kernel proper, without modules.
    cached: Option<KernelTable>,
    /// The complete table.
    table: Option<KernelTable>,
    /// Why it could not be read.
    unreadable: Option<io::Error>,
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

    /// Why kernel stacks have no names, if so.
    pub(super) fn missing_names(&self) -> Option<String> {
        if self.seen.is_empty() || !self.table.as_ref().is_some_and(KernelTable::is_empty) {
            return None;
        }
        let why = match &self.unreadable {
            Some(error) => format!("cannot read /proc/kallsyms: {}", shortage::explain(error)),
            None if geteuid().is_root() => {
                "/proc/kallsyms hides their addresses (sysctl kernel.kptr_restrict=0 shows them)".into()
            }
            None => {
                "/proc/kallsyms hides their addresses (run as root, or sysctl kernel.kptr_restrict=0)".into()
            }
        };
        Some(format!("kernel functions have no names: {why}"))
    }

    fn table(&mut self) -> &KernelTable {
        self.table.get_or_insert_with(|| {
            let table = KernelTable::read().unwrap_or_else(|error| {
                self.unreadable = Some(error);
                KernelTable::default()
            });
            table.store();
            table
        })
    }
}

#[cfg(test)]
mod tests {
    use nix::libc::EMFILE;

    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_hides_nothing() {
        let table = Some(KernelTable::default());
        let hidden = KernelSymbols { table, seen: HashSet::from([1]), ..KernelSymbols::default() };
        assert!(hidden.missing_names().unwrap().contains("hides their addresses"));
        let unreadable = KernelSymbols { unreadable: Some(io::Error::from_raw_os_error(EMFILE)), ..hidden };
        let text = unreadable.missing_names().unwrap();
        assert!(text.contains("ulimit -n") && !text.contains("hides"), "{text}");
    }
}
