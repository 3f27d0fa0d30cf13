//! A bounds-checked reader of little-endian bytes: every read past the end is `None`.

/// A position in untrusted bytes.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// A cursor over `bytes` at `position`.
    pub(crate) fn at(bytes: &'a [u8], position: usize) -> Self {
        Self { bytes, position }
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.position >= self.bytes.len()
    }

    pub(crate) fn skip(&mut self, count: usize) -> Option<()> {
        self.take(count).map(|_| ())
    }

    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.position.checked_add(count)?;
        let taken = self.bytes.get(self.position..end)?;
        self.position = end;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.position)?;
        self.position += 1;
        Some(byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// An unsigned LEB128 number; `None` when it does not fit 64 bits.
    #[inline]
    pub(crate) fn uleb(&mut self) -> Option<u64> {
        let first = self.u8()?;
        if first < 0x80 {
            return Some(u64::from(first));
        }
        self.uleb_rest(first)
    }

    fn uleb_rest(&mut self, first: u8) -> Option<u64> {
        let mut value = u64::from(first & 0x7f);
        let mut shift = 7;
        loop {
            let byte = self.u8()?;
            if shift > 63 || (shift == 63 && byte > 1) {
                return None;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
            shift += 7;
        }
    }

    /// A signed LEB128 number; `None` when it does not fit 64 bits.
    pub(crate) fn sleb(&mut self) -> Option<i64> {
        let mut value = 0i64;
        let mut shift = 0;
        loop {
            let byte = self.u8()?;
            if shift > 63 || (shift == 63 && byte != 0 && byte != 0x7f) {
                return None;
            }
            value |= i64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                if shift < 64 && byte & 0x40 != 0 {
                    value |= -1i64 << shift;
                }
                return Some(value);
            }
        }
    }
}

/// The block whose ULEB128 length is at `position`.
pub(crate) fn block(section: &[u8], position: u32) -> Option<&[u8]> {
    let mut cursor = Cursor::at(section, position as usize);
    let length = usize::try_from(cursor.uleb()?).ok()?;
    cursor.take(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leb_numbers() {
        let unsigned: [(&[u8], Option<u64>); 6] = [
            (&[2], Some(2)),
            (&[0x80, 1], Some(128)),
            (&[0xe5, 0x8e, 0x26], Some(624485)),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], Some(u64::MAX)),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], None),
            (&[0x80], None),
        ];
        for (bytes, value) in unsigned {
            assert_eq!(Cursor::new(bytes).uleb(), value, "{bytes:x?}");
        }
        let signed: [(&[u8], Option<i64>); 7] = [
            (&[2], Some(2)),
            (&[0x7e], Some(-2)),
            (&[0xff, 0], Some(127)),
            (&[0x81, 0x7f], Some(-127)),
            (&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x7f], Some(i64::MIN)),
            (&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01], None),
            (&[], None),
        ];
        for (bytes, value) in signed {
            assert_eq!(Cursor::new(bytes).sleb(), value, "{bytes:x?}");
        }
    }

    #[test]
    fn reads_past_the_end_are_none() {
        let mut cursor = Cursor::new(&[1, 2, 3]);
        assert_eq!(cursor.u16(), Some(0x201));
        assert_eq!(cursor.u16(), None);
        assert_eq!(cursor.u8(), Some(3));
        assert!(cursor.is_at_end());
        assert_eq!(cursor.u8(), None);
        assert_eq!(Cursor::at(&[1], usize::MAX).take(2), None);
    }
}
