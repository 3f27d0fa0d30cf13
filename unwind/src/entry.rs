//! The entries of `.eh_frame`: their extents, and their fields before the program.
//!
//! Format: Linux Standard Base Core 5.0, "Exception Frames"; DWARF 5, section 6.4. The bytes are untrusted: malformed
//! entries are `None`.

use core::marker::PhantomData;

use crate::arch::{Abi, Native};
use crate::cursor::Cursor;
use crate::pointer::{self, Bases};
use crate::section::Section;

/// Byte range of a CFA program, as offsets in the section.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    /// Offset of the first instruction.
    pub start: u32,
    /// Offset of the first byte after the program.
    pub end: u32,
}

/// A Common Information Entry. Kept small because handlers hold one on their stack.
#[derive(Clone, Copy, Debug)]
pub struct Cie<A = Native> {
    /// Bytes of code per unit of `DW_CFA_advance_loc`.
    pub code_alignment: u32,
    /// Bytes per unit of a factored offset.
    pub data_alignment: i32,
    /// Its program, which gives the rules at the start of every function.
    pub(crate) code: Code,
    /// Encoding of the addresses in its FDEs (`DW_EH_PE_*`).
    pub pointer_encoding: u8,
    signal: bool,
    has_augmentation_data: bool,
    abi: PhantomData<A>,
}

impl<A: Abi> Cie<A> {
    /// Whether the functions are signal trampolines (augmentation `S`).
    pub fn is_signal_frame(&self) -> bool {
        self.signal
    }

    /// Whether its FDEs have augmentation data, with its length in front (augmentation `z`).
    pub fn has_augmentation_data(&self) -> bool {
        self.has_augmentation_data
    }

    #[inline]
    pub(crate) fn advance(&self, delta: u64) -> Option<u64> {
        delta.checked_mul(u64::from(self.code_alignment))
    }
}

/// A Frame Description Entry.
#[derive(Clone, Copy, Debug)]
pub struct Fde<'a, A = Native> {
    /// First address covered.
    pub start: u64,
    /// First address not covered.
    pub end: u64,
    /// The CIE it refers to.
    pub cie: Cie<A>,
    /// Its program, which continues that of the CIE.
    pub code: Code,
    /// The section that contains it.
    pub section: Section<'a>,
}

/// Kind of an entry of `.eh_frame`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CfiEntry {
    /// A CIE.
    Cie,
    /// An FDE.
    Fde {
        /// Offset of the CIE in the section.
        cie: usize,
    },
}

/// Extent of an entry in the section.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Offset of the entry's length field.
    pub offset: usize,
    /// Offset of the entry's contents, after the length and the CIE id or pointer.
    pub body: usize,
    /// Offset of the first byte after the entry.
    pub end: usize,
    /// Kind of the entry.
    pub entry: CfiEntry,
}

impl Extent {
    /// The entry at `offset`; `None` at a terminator, at the end of the section, or if malformed.
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
            0 => CfiEntry::Cie,
            distance => CfiEntry::Fde { cie: id_position.checked_sub(distance as usize)? },
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

impl<A: Abi> Cie<A> {
    /// The CIE at `offset`; `None` if there is none or it is malformed.
    pub fn at(section: &Section<'_>, offset: usize) -> Option<Self> {
        let extent = Extent::at(section, offset)?;
        if extent.entry != CfiEntry::Cie {
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
        if return_address != A::RETURN_ADDRESS as u64 {
            return None;
        }
        let mut cie = Cie {
            code_alignment,
            data_alignment,
            pointer_encoding: pointer::ABSPTR,
            signal: false,
            code: Code { start: 0, end: u32::try_from(extent.end).ok()? },
            has_augmentation_data: false,
            abi: PhantomData,
        };
        cie.augment(augmentation, &mut cursor, section.address)?;
        cie.code.start = cursor.position() as u32;
        Some(cie)
    }

    /// Parses the augmentation data and leaves `cursor` at the first instruction.
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
                // Unknown data can be skipped by its length, as long as no known letter follows.
                _ => break,
            }
        }
        (data.position() <= cursor.position()).then_some(())
    }
}

impl<'a, A: Abi> Fde<'a, A> {
    /// The FDE at `offset`; `None` if there is none or it is malformed.
    pub fn at(section: &Section<'a>, offset: usize) -> Option<Self> {
        let extent = Extent::at(section, offset)?;
        let CfiEntry::Fde { cie } = extent.entry else { return None };
        Self::with_cie(section, &extent, Cie::at(section, cie)?)
    }

    /// The FDE at `extent`, with its CIE already parsed.
    pub(crate) fn with_cie(section: &Section<'a>, extent: &Extent, cie: Cie<A>) -> Option<Self> {
        let mut cursor = Cursor::at(section.bytes.get(..extent.end)?, extent.body);
        let bases = Bases { section: section.address, ..Bases::default() };
        let start = pointer::address(&mut cursor, cie.pointer_encoding, bases)?;
        let length = pointer::value(&mut cursor, cie.pointer_encoding)?;
        if cie.has_augmentation_data {
            let length = usize::try_from(cursor.uleb()?).ok()?;
            cursor.skip(length)?;
        }
        let code =
            Code { start: u32::try_from(cursor.position()).ok()?, end: u32::try_from(extent.end).ok()? };
        Some(Fde { start, end: start.checked_add(length)?, cie, code, section: *section })
    }

    /// Whether the FDE covers `address`.
    pub fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}
