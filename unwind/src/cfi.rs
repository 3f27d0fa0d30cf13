//! Call frame information: finds the FDE of an address and decodes its rows on demand.
//!
//! Format: Linux Standard Base Core 5.0, "Exception Frames"; DWARF 5, section 6.4. The bytes are untrusted: malformed
//! input gives `None` or [`End::BadCfi`].

use crate::arch::{Aarch64, Abi, X86_64};
use crate::cursor::{self, Cursor};
use crate::end::End;
pub use crate::entry::{CfiEntry, Cie, Code, Extent, Fde, entries};
use crate::frame_row::{FrameRow, Row};
use crate::narrow_row::NarrowRow;
use crate::pointer::{self, Bases};
use crate::program::Program;
use crate::rule::Rule;
use crate::section::Section;

/// Entries that a linear search examines if there is no search table. Such modules should have a compiled table.
const LINEAR_LIMIT: usize = 1 << 14;
/// FDEs with the same start that a search examines.
const EMPTY_LIMIT: usize = 5;

impl<A: Abi> Cie<A> {
    fn initial_rule(&self, section: &Section<'_>) -> Option<Rule> {
        let program = Program { section: section.bytes, cie: self, bases: Bases::default(), code: self.code };
        let mut row = NarrowRow::<A>::EMPTY;
        program.initial(&mut row)?;
        Some(row.rule(section.bytes, self.is_signal_frame()))
    }
}

impl<'a, A: Abi> Fde<'a, A> {
    pub(crate) fn program(&self) -> Program<'_, A> {
        let bases = Bases { section: self.section.address, data: None, function: Some(self.start) };
        Program { section: self.section.bytes, cie: &self.cie, bases, code: self.code }
    }

    /// The packed rule at `address`; `None` if the FDE is malformed.
    #[inline(never)]
    pub fn rule_at(&self, address: u64) -> Option<Rule> {
        let mut row = NarrowRow::<A>::EMPTY;
        self.program().row_at(self.start, address, &mut row)?;
        Some(row.rule(self.section.bytes, self.cie.is_signal_frame()))
    }

    /// The rules of all registers at `address`; `None` if the FDE is malformed.
    pub fn row_at(&self, address: u64) -> Option<FrameRow<A>> {
        let mut row = FrameRow::EMPTY;
        self.fill_row(address, &mut row)?;
        Some(row)
    }

    /// [`Fde::row_at`] into memory of the caller, to save stack.
    #[inline(never)]
    pub(crate) fn fill_row(&self, address: u64, row: &mut FrameRow<A>) -> Option<()> {
        self.program().row_at(self.start, address, row)
    }

    /// Calls `each(from, to, row)` for every row. `None` if the FDE is malformed, after the rows before the error. Uses
    /// more stack than a handler has.
    pub fn rows(&self, mut each: impl FnMut(u64, u64, &FrameRow<A>)) -> Option<()> {
        let program = self.program();
        let mut initial = FrameRow::EMPTY;
        program.initial(&mut initial)?;
        let all = program.rows(initial, self.start, self.end, |from, to, row| {
            each(from, to, row);
            true
        });
        all.ok()
    }

    fn rules(&self, each: &mut dyn FnMut(u64, u64, Rule) -> bool) -> Result<(), u64> {
        let program = self.program();
        let mut initial = NarrowRow::<A>::EMPTY;
        program.initial(&mut initial).ok_or(self.start)?;
        let (bytes, signal) = (self.section.bytes, self.cie.is_signal_frame());
        program.rows(initial, self.start, self.end, |from, to, row| each(from, to, row.rule(bytes, signal)))
    }

    /// The expression at this offset, to which a row of this FDE refers.
    pub fn expression(&self, position: u32) -> Option<&'a [u8]> {
        cursor::block(self.section.bytes, position)
    }
}

/// Readers of call frame information that are compiled here, once for each architecture. Generic code is compiled again in every
/// crate that uses it, but the agent, which is mapped into every process, is to have one copy of them.
pub trait Reader: Abi {
    /// [`Cie::at`].
    fn cie(section: &Section<'_>, offset: usize) -> Option<Cie<Self>>;

    /// The FDE at `extent`, whose CIE is `cie`; `None` if it is malformed.
    fn fde<'a>(section: &Section<'a>, extent: &Extent, cie: Cie<Self>) -> Option<Fde<'a, Self>>;

    /// The packed rule at the first instruction of functions, before their own programs. `section` contains the CIE. `None` if its
    /// program is malformed.
    fn initial_rule(cie: &Cie<Self>, section: &Section<'_>) -> Option<Rule>;

    /// Calls `each(from, to, rule)` with the packed rule of every row, until it returns false. `Err` holds the address from which
    /// the program is malformed, after the rows before it. Uses more stack than a handler has.
    fn rules(fde: &Fde<'_, Self>, each: &mut dyn FnMut(u64, u64, Rule) -> bool) -> Result<(), u64>;
}

macro_rules! readers {
    ($($abi:ty),*) => {$(
        impl Reader for $abi {
            fn cie(section: &Section<'_>, offset: usize) -> Option<Cie<Self>> {
                Cie::at(section, offset)
            }

            fn fde<'a>(section: &Section<'a>, extent: &Extent, cie: Cie<Self>) -> Option<Fde<'a, Self>> {
                Fde::with_cie(section, extent, cie)
            }

            fn initial_rule(cie: &Cie<Self>, section: &Section<'_>) -> Option<Rule> {
                cie.initial_rule(section)
            }

            fn rules(fde: &Fde<'_, Self>, each: &mut dyn FnMut(u64, u64, Rule) -> bool) -> Result<(), u64> {
                fde.rules(each)
            }
        }
    )*};
}

readers!(X86_64, Aarch64);

/// Result of a lookup in the search table.
enum Search {
    /// There is no usable table.
    NoTable,
    /// No FDE starts at or before the address.
    Nothing,
    /// The FDE's offset in `.eh_frame`.
    At(usize),
}

/// Looks `address` up in the search table. Not inlined into [`find`], so that its stack is free again when entries are
/// parsed.
#[inline(never)]
fn search(header: Option<Section<'_>>, eh_frame: &Section<'_>, address: u64) -> Result<Search, End> {
    let Some(header) = header.and_then(SearchTable::parse) else { return Ok(Search::NoTable) };
    match header.find(address) {
        Some(fde) => eh_frame.offset_of(fde).map(Search::At).ok_or(End::BadCfi),
        None => Ok(Search::Nothing),
    }
}

/// The FDE of `eh_frame` that covers `address`, found through `.eh_frame_hdr` if there is one. `Ok(None)` if none
/// covers it.
#[inline(never)]
pub fn find<'a, A: Abi>(
    eh_frame: &Section<'a>,
    header: Option<Section<'a>>,
    address: u64,
) -> Result<Option<Fde<'a, A>>, End> {
    let mut offset = match search(header, eh_frame, address)? {
        Search::At(offset) => offset,
        Search::Nothing => return Ok(None),
        Search::NoTable => return Ok(scan(eh_frame, address)),
    };
    let mut start = None;
    // Linkers that fold identical functions leave empty FDEs, and of those with one start list only the first in the
    // header.
    for _ in 0..EMPTY_LIMIT {
        let fde = match Fde::<A>::at(eh_frame, offset) {
            Some(fde) if start.is_none_or(|start| start == fde.start) => fde,
            None if start.is_none() => return Err(End::BadCfi),
            _ => break,
        };
        if fde.start != fde.end {
            return Ok(fde.contains(address).then_some(fde));
        }
        start = Some(fde.start);
        let Some(extent) = Extent::at(eh_frame, offset) else { break };
        offset = extent.end;
    }
    Ok(None)
}

/// Linear search through the first [`LINEAR_LIMIT`] entries.
#[inline(never)]
fn scan<'a, A: Abi>(eh_frame: &Section<'a>, address: u64) -> Option<Fde<'a, A>> {
    let mut offset = 0;
    for _ in 0..LINEAR_LIMIT {
        let extent = Extent::at(eh_frame, offset)?;
        offset = extent.end;
        let CfiEntry::Fde { cie } = extent.entry else { continue };
        let Some(cie) = Cie::at(eh_frame, cie) else { continue };
        match Fde::with_cie(eh_frame, &extent, cie) {
            Some(fde) if fde.contains(address) => return Some(fde),
            _ => {}
        }
    }
    None
}

/// The sorted search table of `.eh_frame_hdr`.
struct SearchTable<'a> {
    /// Base of the entries: the address of the header.
    base: u64,
    /// (function start, FDE address) pairs, four bytes each.
    entries: &'a [[u8; 8]],
}

impl<'a> SearchTable<'a> {
    /// The table of a header; `None` if it has none in the usual encoding.
    fn parse(header: Section<'a>) -> Option<Self> {
        let mut cursor = Cursor::new(header.bytes);
        let (version, eh_frame_encoding, count_encoding, table_encoding) =
            (cursor.u8()?, cursor.u8()?, cursor.u8()?, cursor.u8()?);
        if version != 1 || table_encoding != pointer::DATAREL_SDATA4 {
            return None;
        }
        let bases = Bases { section: header.address, data: Some(header.address), function: None };
        pointer::skip(&mut cursor, eh_frame_encoding, bases)?;
        let count = usize::try_from(pointer::address(&mut cursor, count_encoding, bases)?).ok()?;
        let (entries, _) = header.bytes.get(cursor.position()..)?.as_chunks();
        Some(Self { base: header.address, entries: entries.get(..count.min(entries.len()))? })
    }

    /// The address of the FDE with the greatest start at or below `address`.
    fn find(&self, address: u64) -> Option<u64> {
        let after = self.entries.partition_point(|entry| self.relative(entry, 0) <= address);
        self.entries.get(after.checked_sub(1)?).map(|entry| self.relative(entry, 4))
    }

    fn relative(&self, entry: &[u8; 8], at: usize) -> u64 {
        let bits = u64::from_le_bytes(*entry) >> (8 * at);
        self.base.wrapping_add(bits as u32 as i32 as u64)
    }
}

/// The address of `.eh_frame` according to its header; `None` if that is malformed.
pub(crate) fn eh_frame_address(header: Section<'_>) -> Option<u64> {
    let mut cursor = Cursor::new(header.bytes);
    let (version, encoding) = (cursor.u8()?, cursor.u8()?);
    cursor.skip(2)?;
    let bases = Bases { section: header.address, data: Some(header.address), function: None };
    (version == 1).then(|| pointer::address(&mut cursor, encoding, bases))?
}
