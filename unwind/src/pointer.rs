//! Encoded pointers of `.eh_frame` and `.eh_frame_hdr` (Linux Standard Base, DWARF Extensions, 10.5.1).

use crate::cursor::Cursor;

/// No value is present.
pub(crate) const OMIT: u8 = 0xff;
/// An absolute pointer.
pub(crate) const ABSPTR: u8 = 0x00;
/// Signed four bytes relative to the data base: the encoding of all usual search tables.
pub(crate) const DATAREL_SDATA4: u8 = 0x3b;

const PCREL: u8 = 0x10;
const DATAREL: u8 = 0x30;
const FUNCREL: u8 = 0x40;
const ALIGNED: u8 = 0x50;
const INDIRECT: u8 = 0x80;

/// The bases that encoded addresses may be relative to.
#[derive(Clone, Copy, Default)]
pub(crate) struct Bases {
    /// Address of the byte at cursor position 0.
    pub(crate) section: u64,
    /// Base of `datarel` values: the header itself in `.eh_frame_hdr`.
    pub(crate) data: Option<u64>,
    /// Base of `funcrel` values: the start of the FDE's function.
    pub(crate) function: Option<u64>,
}

/// The value in the given format, without its base.
pub(crate) fn value(cursor: &mut Cursor<'_>, encoding: u8) -> Option<u64> {
    match encoding & 0x0f {
        0x00 | 0x04 | 0x0c => cursor.u64(),
        0x01 => cursor.uleb(),
        0x02 => cursor.u16().map(u64::from),
        0x03 => cursor.u32().map(u64::from),
        0x09 => cursor.sleb().map(|value| value as u64),
        0x0a => cursor.u16().map(|value| value as i16 as u64),
        0x0b => cursor.u32().map(|value| value as i32 as u64),
        _ => None,
    }
}

/// The address with its base added. `None` for indirect pointers, which would need a load from the program.
pub(crate) fn address(cursor: &mut Cursor<'_>, encoding: u8, bases: Bases) -> Option<u64> {
    if encoding == OMIT || encoding & INDIRECT != 0 {
        return None;
    }
    if encoding & 0x70 == ALIGNED {
        align(cursor, bases)?;
        return cursor.u64();
    }
    let field = bases.section.wrapping_add(cursor.position() as u64);
    let base = match encoding & 0x70 {
        ABSPTR => 0,
        PCREL => field,
        DATAREL => bases.data?,
        FUNCREL => bases.function?,
        _ => return None,
    };
    Some(base.wrapping_add(value(cursor, encoding)?))
}

/// Skips an encoded pointer (the personality routine).
pub(crate) fn skip(cursor: &mut Cursor<'_>, encoding: u8, bases: Bases) -> Option<()> {
    if encoding == OMIT {
        return Some(());
    }
    if encoding & 0x70 == ALIGNED {
        align(cursor, bases)?;
        return cursor.skip(8);
    }
    value(cursor, encoding).map(|_| ())
}

fn align(cursor: &mut Cursor<'_>, bases: Bases) -> Option<()> {
    let field = bases.section.wrapping_add(cursor.position() as u64);
    cursor.skip((field.wrapping_neg() & 7) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASES: Bases = Bases { section: 0x1000, data: Some(0x5000), function: Some(0x9000) };

    fn decode(bytes: &[u8], encoding: u8) -> Option<u64> {
        let mut cursor = Cursor::new(bytes);
        cursor.u8()?;
        address(&mut cursor, encoding, BASES)
    }

    #[test]
    fn every_encoding() {
        let bytes = [0xee, 0xf0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        let minus_16 = 16u64.wrapping_neg();
        let cases = [
            (0x00, Some(minus_16)),
            (0x04, Some(minus_16)),
            (0x0c, Some(minus_16)),
            (0x02, Some(0xfff0)),
            (0x0a, Some(minus_16)),
            (0x03, Some(0xffff_fff0)),
            (0x0b, Some(minus_16)),
            (0x1b, Some(0x1001 - 16)),
            (0x3b, Some(0x5000 - 16)),
            (0x4b, Some(0x9000 - 16)),
            (0x13, Some(0x1001 + 0xffff_fff0)),
            (0x05, None),
            (0x2b, None),
            (0x9b, None),
            (OMIT, None),
        ];
        for (encoding, expected) in cases {
            assert_eq!(decode(&bytes, encoding), expected, "{encoding:#x}");
        }
        assert_eq!(decode(&[0, 0x81, 0x01], 0x01), Some(0x81));
        assert_eq!(decode(&[0, 0x7f], 0x19), Some(0x1000));
    }

    #[test]
    fn aligned_starts_at_the_next_word() {
        let bytes = [0xee, 0, 0, 0, 0, 0, 0, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0];
        assert_eq!(decode(&bytes, ALIGNED), Some(0x1234));
    }

    #[test]
    fn skipping_takes_the_same_bytes() {
        for (encoding, length) in [(0x00, 8), (0x9b, 4), (0x02, 2), (OMIT, 0), (0x01, 1)] {
            let mut cursor = Cursor::new(&[1; 16]);
            skip(&mut cursor, encoding, BASES).unwrap();
            assert_eq!(cursor.position(), length, "{encoding:#x}");
        }
    }
}
