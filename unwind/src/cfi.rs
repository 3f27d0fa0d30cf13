//! `.eh_frame` and `.eh_frame_hdr`: entries, search, and the row of one address decoded on demand.
//!
//! Format: Linux Standard Base Core 5.0, "Exception Frames"; DWARF 5, section 6.4. Nothing here trusts the bytes:
//! malformed entries are `None` or [`End::BadCfi`].

use crate::cursor::Cursor;
use crate::end::End;
use crate::frame_row::FrameRow;
use crate::module::Module;
use crate::pointer::{self, Bases};
use crate::program::{self, Program, Row};
use crate::rule::{NarrowRow, Rule};
use crate::section::Section;
use crate::x86_64::RETURN_ADDRESS;

/// Entries that a search without a header looks at: such modules are meant to have a compiled table.
const LINEAR_LIMIT: usize = 1 << 14;
/// FDEs of one start that a search looks at.
const EMPTY_LIMIT: usize = 5;

/// A Common Information Entry. Small, because a handler keeps it on its stack.
#[derive(Clone, Copy, Debug)]
pub struct Cie {
    pub(crate) code_alignment: u32,
    pub(crate) data_alignment: i32,
    pub(crate) code: program::Code,
    pub(crate) pointer_encoding: u8,
    signal: bool,
    has_augmentation_data: bool,
}

impl Cie {
    /// Whether its functions are signal trampolines (augmentation `S`).
    pub fn is_signal_frame(&self) -> bool {
        self.signal
    }

    #[cfg(feature = "compile")]
    pub(crate) fn has_augmentation_data(&self) -> bool {
        self.has_augmentation_data
    }

    #[inline]
    pub(crate) fn advance(&self, delta: u64) -> Option<u64> {
        delta.checked_mul(u64::from(self.code_alignment))
    }
}

/// A Frame Description Entry.
#[derive(Clone, Copy, Debug)]
pub struct Fde<'a> {
    /// First address covered.
    pub start: u64,
    /// First address not covered.
    pub end: u64,
    /// The entry's common part.
    pub cie: Cie,
    pub(crate) code: program::Code,
    pub(crate) section: Section<'a>,
}

/// One entry of `.eh_frame`, by its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A CIE.
    Cie,
    /// An FDE and the offset of its CIE.
    Fde {
        /// Offset of the CIE in the section.
        cie: usize,
    },
}

/// Where an entry lies in the section.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Offset of the entry's length field.
    pub offset: usize,
    /// Offset of the entry's contents, after the length and the CIE id or pointer.
    body: usize,
    /// Offset of the first byte after the entry.
    pub end: usize,
    /// What the entry is.
    pub entry: Entry,
}

impl Extent {
    #[cfg(feature = "compile")]
    pub(crate) fn body(&self) -> usize {
        self.body
    }

    /// The entry at `offset`; `None` at a terminator, at the end of the bytes or when malformed.
    pub fn at(section: &Section<'_>, offset: usize) -> Option<Extent> {
        let mut cursor = Cursor::at(section.bytes, offset);
        let length = match cursor.u32()? {
            0 => return None,
            0xffff_ffff => usize::try_from(cursor.u64()?).ok()?,
            length => length as usize,
        };
        let id_position = cursor.position();
        let end = id_position.checked_add(length).filter(|&end| end <= section.bytes.len())?;
        let id = cursor.u32()?;
        let entry = match id {
            0 => Entry::Cie,
            distance => Entry::Fde { cie: id_position.checked_sub(distance as usize)? },
        };
        (cursor.position() <= end).then_some(Extent { offset, body: cursor.position(), end, entry })
    }
}

/// The entries of `section` in order, up to the terminator or the first malformed one.
pub fn entries<'a>(section: Section<'a>) -> impl Iterator<Item = Extent> + 'a {
    let mut offset = 0;
    core::iter::from_fn(move || {
        let extent = Extent::at(&section, offset)?;
        offset = extent.end;
        Some(extent)
    })
}

impl Cie {
    /// The CIE at `offset`; `None` when it is none or malformed.
    pub fn at(section: &Section<'_>, offset: usize) -> Option<Cie> {
        let extent = Extent::at(section, offset)?;
        if extent.entry != Entry::Cie {
            return None;
        }
        let mut cursor = Cursor::at(section.bytes.get(..extent.end)?, extent.body);
        let version = cursor.u8()?;
        let rest = section.bytes.get(cursor.position()..extent.end)?;
        let augmentation = rest.get(..rest.iter().position(|&byte| byte == 0)?)?;
        cursor.skip(augmentation.len() + 1)?;
        match version {
            1 | 3 => {}
            4 => {
                let (address_size, segment_size) = (cursor.u8()?, cursor.u8()?);
                if (address_size, segment_size) != (8, 0) {
                    return None;
                }
            }
            _ => return None,
        }
        if augmentation == b"eh" {
            cursor.skip(8)?;
        }
        let code_alignment = u32::try_from(cursor.uleb()?).ok()?;
        let data_alignment = i32::try_from(cursor.sleb()?).ok()?;
        let return_address = if version == 1 { u64::from(cursor.u8()?) } else { cursor.uleb()? };
        if return_address != RETURN_ADDRESS as u64 {
            return None;
        }
        let mut cie = Cie {
            code_alignment,
            data_alignment,
            pointer_encoding: pointer::ABSPTR,
            signal: false,
            code: program::Code { start: 0, end: u32::try_from(extent.end).ok()? },
            has_augmentation_data: false,
        };
        cie.augment(augmentation, &mut cursor, section.address)?;
        cie.code.start = cursor.position() as u32;
        Some(cie)
    }

    /// Takes in the augmentation data and leaves `cursor` at the first instruction.
    fn augment(&mut self, augmentation: &[u8], cursor: &mut Cursor<'_>, address: u64) -> Option<()> {
        let Some((b'z', letters)) = augmentation.split_first() else {
            return matches!(augmentation, b"" | b"eh").then_some(());
        };
        self.has_augmentation_data = true;
        let length = usize::try_from(cursor.uleb()?).ok()?;
        let mut data = *cursor;
        cursor.skip(length)?;
        let bases = Bases { section: address, ..Bases::default() };
        for letter in letters {
            match letter {
                b'R' => self.pointer_encoding = data.u8()?,
                b'P' => {
                    let encoding = data.u8()?;
                    pointer::skip(&mut data, encoding, bases)?;
                }
                b'L' => data.skip(1)?,
                b'S' => self.signal = true,
                b'B' | b'G' => {}
                // The length makes unknown data harmless, as long as nothing known follows it.
                _ => break,
            }
        }
        (data.position() <= cursor.position()).then_some(())
    }
}

impl<'a> Fde<'a> {
    /// The FDE at `offset`; `None` when it is none or malformed.
    pub fn at(section: &Section<'a>, offset: usize) -> Option<Fde<'a>> {
        let extent = Extent::at(section, offset)?;
        let Entry::Fde { cie } = extent.entry else { return None };
        Self::with_cie(section, &extent, Cie::at(section, cie)?)
    }

    /// The FDE that `extent` describes, whose CIE is parsed already.
    pub(crate) fn with_cie(section: &Section<'a>, extent: &Extent, cie: Cie) -> Option<Fde<'a>> {
        let mut cursor = Cursor::at(section.bytes.get(..extent.end)?, extent.body);
        let bases = Bases { section: section.address, ..Bases::default() };
        let start = pointer::address(&mut cursor, cie.pointer_encoding, bases)?;
        let length = pointer::value(&mut cursor, cie.pointer_encoding)?;
        if cie.has_augmentation_data {
            let length = usize::try_from(cursor.uleb()?).ok()?;
            cursor.skip(length)?;
        }
        let code = program::Code {
            start: u32::try_from(cursor.position()).ok()?,
            end: u32::try_from(extent.end).ok()?,
        };
        Some(Fde { start, end: start.checked_add(length)?, cie, code, section: *section })
    }

    /// Whether the FDE covers `address`.
    pub fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    pub(crate) fn program(&self) -> Program<'_> {
        let bases = Bases { section: self.section.address, data: None, function: Some(self.start) };
        Program { section: self.section.bytes, cie: &self.cie, bases, code: self.code }
    }

    /// The packed rule in force at `address`; `None` when the FDE is malformed.
    #[inline(never)]
    pub fn rule_at(&self, address: u64) -> Option<Rule> {
        let mut row = NarrowRow::EMPTY;
        self.program().row_at(self.start, address, &mut row)?;
        Some(row.rule(self.section.bytes, self.cie.signal))
    }

    /// The rules of all registers in force at `address`; `None` when the FDE is malformed.
    pub fn row_at(&self, address: u64) -> Option<FrameRow> {
        let mut row = FrameRow::EMPTY;
        self.fill_row(address, &mut row)?;
        Some(row)
    }

    /// [`Fde::row_at`] without a copy on the stack.
    #[inline(never)]
    pub(crate) fn fill_row(&self, address: u64, row: &mut FrameRow) -> Option<()> {
        self.program().row_at(self.start, address, row)
    }

    /// Calls `each(from, to, row)` for every row; `None` when the FDE is malformed, after the rows before the fault.
    /// Takes more stack than a handler has.
    pub fn rows(&self, mut each: impl FnMut(u64, u64, &FrameRow)) -> Option<()> {
        let program = self.program();
        let mut initial = FrameRow::EMPTY;
        program.initial(&mut initial)?;
        let all = program.rows(initial, self.start, self.end, |from, to, row| {
            each(from, to, row);
            true
        });
        all.ok()
    }

    /// The expression that a row of this FDE refers to.
    pub fn expression(&self, position: u32) -> Option<&'a [u8]> {
        crate::rule::block(self.section.bytes, position)
    }
}

/// What the search table says about an address.
enum Search {
    /// There is no table that can be searched.
    NoTable,
    /// No FDE starts at or before the address.
    Nothing,
    /// The FDE's offset in `.eh_frame`.
    At(usize),
}

/// Looks `address` up in the search table. Apart from [`find`], so that its stack is free when entries are parsed.
#[inline(never)]
fn search(module: &Module<'_>, eh_frame: &Section<'_>, address: u64) -> Result<Search, End> {
    let Some(header) = module.eh_frame_hdr.and_then(SearchTable::parse) else { return Ok(Search::NoTable) };
    match header.find(address) {
        Some(fde) => eh_frame.offset_of(fde).map(Search::At).ok_or(End::BadCfi),
        None => Ok(Search::Nothing),
    }
}

/// The FDE that covers `address`: `Ok(None)` when none does.
#[inline(never)]
pub fn find<'a>(module: &Module<'a>, address: u64) -> Result<Option<Fde<'a>>, End> {
    let Some(eh_frame) = &module.eh_frame else { return Ok(None) };
    let mut offset = match search(module, eh_frame, address)? {
        Search::At(offset) => offset,
        Search::Nothing => return Ok(None),
        Search::NoTable => return Ok(scan(eh_frame, address)),
    };
    let mut start = None;
    // Linkers that fold functions leave empty FDEs, and keep only the first of one start in the header.
    for _ in 0..EMPTY_LIMIT {
        let fde = match Fde::at(eh_frame, offset) {
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

/// The packed rule for `address`, decoded on demand; [`Rule::GAP`] when no FDE covers it.
pub fn rule_at(module: &Module<'_>, address: u64) -> Result<Rule, End> {
    match &find(module, address) {
        Ok(Some(fde)) => fde.rule_at(address).ok_or(End::BadCfi),
        Ok(None) => Ok(Rule::GAP),
        Err(end) => Err(*end),
    }
}

/// Search without a header, through the first [`LINEAR_LIMIT`] entries.
#[inline(never)]
fn scan<'a>(eh_frame: &Section<'a>, address: u64) -> Option<Fde<'a>> {
    let mut offset = 0;
    for _ in 0..LINEAR_LIMIT {
        let extent = Extent::at(eh_frame, offset)?;
        offset = extent.end;
        let Entry::Fde { cie } = extent.entry else { continue };
        let Some(cie) = Cie::at(eh_frame, cie) else { continue };
        match Fde::with_cie(eh_frame, &extent, cie) {
            Some(fde) if fde.contains(address) => return Some(fde),
            _ => {}
        }
    }
    None
}

/// The sorted table of `.eh_frame_hdr`.
struct SearchTable<'a> {
    /// Address that the entries are relative to: the header's own.
    base: u64,
    /// Pairs of (function start, FDE address), four bytes each.
    entries: &'a [[u8; 8]],
}

impl<'a> SearchTable<'a> {
    /// The table of a header; `None` when it has none that can be searched.
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

    /// The address of the FDE with the greatest start that is not above `address`.
    fn find(&self, address: u64) -> Option<u64> {
        let after = self.entries.partition_point(|entry| self.relative(entry, 0) <= address);
        self.entries.get(after.checked_sub(1)?).map(|entry| self.relative(entry, 4))
    }

    fn relative(&self, entry: &[u8; 8], at: usize) -> u64 {
        let bits = u64::from_le_bytes(*entry) >> (8 * at);
        self.base.wrapping_add(bits as u32 as i32 as u64)
    }
}

/// The address of `.eh_frame` that a header names; `None` when it is malformed.
pub fn eh_frame_address(header: Section<'_>) -> Option<u64> {
    let mut cursor = Cursor::new(header.bytes);
    let (version, encoding) = (cursor.u8()?, cursor.u8()?);
    cursor.skip(2)?;
    let bases = Bases { section: header.address, data: Some(header.address), function: None };
    (version == 1).then(|| pointer::address(&mut cursor, encoding, bases))?
}
