//! A loaded object as the walker sees it.

use crate::arch::{Abi, Native};
use crate::cfi::{self, Fde};
use crate::end::End;
use crate::late_table::LateTable;
use crate::rule::{Kind, Rule};
use crate::section::Section;
use crate::table::Table;

/// A loaded object, or an anonymous range of code.
#[derive(Clone, Copy, Debug, Default)]
pub struct Module<'a> {
    /// First address of the executable segments.
    pub start: u64,
    /// First address after the executable segments.
    pub end: u64,
    /// Load bias: address minus virtual address.
    pub bias: u64,
    /// Address of the entry point; 0 if there is none (most shared objects).
    pub entry: u64,
    /// `.eh_frame_hdr`, with its sorted search table.
    pub eh_frame_hdr: Option<Section<'a>>,
    /// `.eh_frame`; may extend past its end, since entries carry their own lengths.
    pub eh_frame: Option<Section<'a>>,
    /// The rows compiled from `eh_frame`.
    pub table: Option<Table<'a>>,
    /// Where a better table may be made.
    pub late: Option<&'a LateTable>,
}

impl<'a> Module<'a> {
    /// Whether `address` lies in the module.
    pub fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// Whether any rule covers `address`.
    pub fn covers(&self, address: u64) -> bool {
        self.contains(address) && self.rule_at(address).is_ok_and(|rule| rule.kind() != Kind::Uncovered)
    }

    /// The table in use.
    #[inline]
    pub(crate) fn table(&self) -> Option<&Table<'a>> {
        match self.late.and_then(LateTable::get) {
            Some(made) => Some(made),
            None => self.table.as_ref(),
        }
    }

    /// False if the table shows that no function begins at `address`. Cheaper than a search for the FDE.
    pub(crate) fn may_begin(&self, address: u64) -> bool {
        self.table().is_none_or(|table| table.lookup(address.wrapping_sub(self.bias)) == Native::ENTRY)
    }

    /// The packed rule for `address`, from the table or decoded on demand; [`Rule::UNCOVERED`] if nothing covers it.
    pub(crate) fn rule_at(&self, address: u64) -> Result<Rule, End> {
        match self.table() {
            Some(table) => Ok(table.lookup(address.wrapping_sub(self.bias))),
            None => self.decode_rule(address),
        }
    }

    /// The FDE that covers `address`; `Ok(None)` if there is none.
    pub fn fde_at(&self, address: u64) -> Result<Option<Fde<'a>>, End> {
        let Some(eh_frame) = &self.eh_frame else { return Ok(None) };
        cfi::find(eh_frame, self.eh_frame_hdr, address)
    }

    /// The packed rule for `address`, decoded on demand; [`Rule::UNCOVERED`] if no FDE covers it.
    pub fn decode_rule(&self, address: u64) -> Result<Rule, End> {
        match &self.fde_at(address) {
            Ok(Some(fde)) => fde.rule_at(address).ok_or(End::BadCfi),
            Ok(None) => Ok(Rule::UNCOVERED),
            Err(end) => Err(*end),
        }
    }
}
