//! CPython's line tables: find the source line of an instruction. Plug-in unwinders report the line directly.
//!
//! Three forms: `co_lnotab` up to 3.9 (Objects/lnotab_notes.txt), PEP 626's `co_linetable` of 3.10 (the same file there),
//! and the location table of 3.11 and later (Objects/locations.md, in 3.13 InternalDocs/locations.md). A table that ends
//! early, or means nothing, says nothing.

/// The form of a line table that is the name of a language instead.
pub(super) const NAME_OF_LANGUAGE: u32 = 4;

/// The line of the instruction at `offset`, in units of two bytes; none if the table does not say.
pub(super) fn line_of(form: u32, table: &[u8], first_line: u32, offset: u32) -> Option<u32> {
    let (first, bytes) = (i64::from(first_line), u64::from(offset) * 2);
    let line = match form {
        1 => by_lnotab(table, first, bytes),
        2 => by_ranges(table, first, bytes),
        3 => by_locations(table, first, offset.into()),
        NAME_OF_LANGUAGE => Some(offset.into()),
        _ => None,
    };
    line.and_then(|line| u32::try_from(line).ok()).filter(|line| *line > 0)
}

/// Pairs: bytes to the next place, lines to its line.
fn by_lnotab(table: &[u8], first: i64, at: u64) -> Option<i64> {
    let (mut start, mut line) = (0, first);
    for &[bytes, lines] in table.as_chunks().0 {
        start += u64::from(bytes);
        if start > at {
            break;
        }
        line += i64::from(lines as i8);
    }
    Some(line)
}

/// Pairs: bytes of the range, lines from the one before to its line; -128 for none.
fn by_ranges(table: &[u8], first: i64, at: u64) -> Option<i64> {
    const NONE: i8 = -128;
    let (mut end, mut line) = (0, first);
    for &[bytes, lines] in table.as_chunks().0 {
        end += u64::from(bytes);
        let lines = lines as i8;
        if lines != NONE {
            line += i64::from(lines);
        }
        if at < end {
            return (lines != NONE).then_some(line);
        }
    }
    None
}

/// Entries: a byte with the top bit set, 4 bits of kind and 3 bits of length in units, less one; then what the kind has.
fn by_locations(table: &[u8], first: i64, at: u64) -> Option<i64> {
    let mut bytes = table.iter().copied();
    let (mut end, mut line) = (0, first);
    while let Some(head) = bytes.next() {
        if head & 0x80 == 0 {
            return None;
        }
        end += u64::from(head & 7) + 1;
        let kind = head >> 3 & 15;
        let mut skip = |count: usize| count == 0 || bytes.nth(count - 1).is_some();
        match kind {
            0..=9 => skip(1).then_some(())?,
            10..=12 => {
                skip(2).then_some(())?;
                line += i64::from(kind - 10);
            }
            13 => line += signed(&mut bytes)?,
            14 => {
                line += signed(&mut bytes)?;
                // Last line, first and last column.
                for _ in 0..3 {
                    unsigned(&mut bytes)?;
                }
            }
            _ => {}
        }
        if at < end {
            return (kind != 15).then_some(line);
        }
    }
    None
}

/// Six bits to a byte, the lowest first; bit 6 says that there are more.
fn unsigned(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut value = 0;
    for shift in (0..60).step_by(6) {
        let byte = bytes.next()?;
        value |= u64::from(byte & 0x3f) << shift;
        if byte & 0x40 == 0 {
            return Some(value);
        }
    }
    None
}

/// The lowest bit is the sign.
fn signed(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let value = unsigned(bytes)?;
    let amount = (value >> 1) as i64;
    Some(if value & 1 == 1 { -amount } else { amount })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `dis.findlinestarts` and `co_lines()` say of a function with a loop, compiled by each version.
    #[test]
    fn each_form_is_read() {
        let lines = |form, table: &[u8], offsets: &[u32]| -> Vec<Option<u32>> {
            offsets.iter().map(|&offset| line_of(form, table, 10, offset)).collect()
        };
        let lnotab = [0, 1, 4, 1, 12, 255, 8, 3];
        assert_eq!(
            lines(1, &lnotab, &[0, 1, 2, 7, 8, 11, 12, 99]),
            [11, 11, 12, 12, 11, 11, 14, 14].map(Some)
        );
        let ranges = [4, 1, 12, 1, 2, 128, 2, 254];
        assert_eq!(
            lines(2, &ranges, &[0, 1, 2, 7, 8, 9, 10]),
            [Some(11), Some(11), Some(12), Some(12), None, Some(10), None]
        );
        let locations = [
            0x80 | 15 << 3, // one unit without a place
            0x80 | 11 << 3 | 1,
            4,
            9, // two units a line further
            0x80 | 3 << 3 | 7,
            0x42, // eight units in the same line
            0x80 | 13 << 3,
            0b101, // one unit two lines back
            0x80 | 14 << 3 | 2,
            0x40 | 0b10_0000,
            0b1,
            0,
            1,
            2, // three units 48 lines further
        ];
        assert_eq!(
            lines(3, &locations, &[0, 1, 2, 3, 10, 11, 12, 14, 15]),
            [None, Some(11), Some(11), Some(11), Some(11), Some(9), Some(57), Some(57), None]
        );
        // Cut off anywhere, a table says the same or nothing.
        for end in 0..locations.len() {
            for offset in 0..16 {
                let cut = line_of(3, &locations[..end], 10, offset);
                assert!(cut.is_none() || cut == line_of(3, &locations, 10, offset), "{end} {offset}");
            }
        }
        assert_eq!((lines(0, &locations, &[0]), lines(3, &[1, 2], &[0])), (vec![None], vec![None]));
    }
}
