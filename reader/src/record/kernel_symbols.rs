//! The names of the running kernel's functions.
//!
//! They are of use while this kernel runs only, and hidden from most users: so the recorder, which may be more
//! privileged than whoever reads the profile later, tells each function once, before the first sample that has it.

use std::collections::HashSet;

use selfwind_profile::profile_file::{KernelSymbol, Sample, WALL_MARKS};

use crate::record::kernel_table::KernelTable;

/// Tells the functions of kernel stacks as they come.
#[derive(Default)]
pub(crate) struct KernelSymbols {
    /// What was kept of an earlier recording: the kernel itself.
    kept: Option<KernelTable>,
    /// All there is.
    table: Option<KernelTable>,
    seen: HashSet<u64>,
    told: HashSet<u64>,
}

impl KernelSymbols {
    /// The functions of a sample that were not told before.
    pub(crate) fn news(&mut self, sample: &Sample) -> Vec<KernelSymbol> {
        let mut news = Vec::new();
        let frames = sample.kernel.iter().flat_map(|kernel| &kernel.frames);
        for &address in frames.filter(|&&address| address < WALL_MARKS) {
            if self.seen.insert(address)
                && let Some(symbol) = self.find(address)
                && self.told.insert(symbol.start)
            {
                news.push(symbol);
            }
        }
        news
    }

    /// The function at an address.
    pub(crate) fn find(&mut self, address: u64) -> Option<KernelSymbol> {
        let kept = self.kept.get_or_insert_with(KernelTable::kept).find(address);
        kept.or_else(|| self.table().find(address))
    }

    /// True if kernel stacks came and no name is to be had for them.
    pub(super) fn are_hidden(&self) -> bool {
        !self.seen.is_empty() && self.table.as_ref().is_some_and(KernelTable::is_empty)
    }

    fn table(&mut self) -> &KernelTable {
        self.table.get_or_insert_with(|| {
            let table = KernelTable::read();
            table.keep();
            table
        })
    }
}
