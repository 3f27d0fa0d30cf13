//! The primitives of an event: LEB128 integers, strings, lists.

use super::limits::STRING_MAX;

/// Appends primitives to a buffer.
pub(super) trait Put {
    fn put_u64(&mut self, value: u64);
    #[inline(always)]
    fn put_i64(&mut self, value: i64) {
        self.put_u64(((value << 1) ^ (value >> 63)) as u64);
    }
    #[inline(always)]
    fn put_u32(&mut self, value: u32) {
        self.put_u64(u64::from(value));
    }
}

/// Appends more to a buffer that grows.
pub(super) trait PutText: Put {
    /// Longer strings than the format allows are cut.
    fn put_bytes(&mut self, value: &[u8]);
    fn put_strings(&mut self, values: &[String]) {
        self.put_u64(values.len() as u64);
        for value in values {
            self.put_bytes(value.as_bytes());
        }
    }
}

impl Put for Vec<u8> {
    fn put_u64(&mut self, value: u64) {
        let mut bytes = [0; INTEGER_MOST];
        let mut room = Room { bytes: &mut bytes, len: 0 };
        room.put_u64(value);
        let len = room.len;
        self.extend_from_slice(&bytes[..len]);
    }
}

impl PutText for Vec<u8> {
    fn put_bytes(&mut self, value: &[u8]) {
        let value = &value[..value.len().min(STRING_MAX)];
        self.put_u64(value.len() as u64);
        self.extend_from_slice(value);
    }
}

/// Bytes that an integer has at most.
pub(super) const INTEGER_MOST: usize = 10;

/// A buffer that has room for all that is put: [`INTEGER_MOST`] bytes for each integer.
pub(super) struct Room<'a> {
    pub(super) bytes: &'a mut [u8],
    /// So many of them are taken.
    pub(super) len: usize,
}

impl Room<'_> {
    #[inline(always)]
    pub(super) fn put_byte(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }
}

impl Put for Room<'_> {
    #[inline(always)]
    fn put_u64(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.put_byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.put_byte(value as u8);
    }
}

/// What an event's bytes break.
pub(super) type Malformed = &'static str;

/// Takes primitives from an event's bytes.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        let (&first, rest) = self.0.split_first().ok_or("an event ends early")?;
        self.0 = rest;
        Ok(first)
    }

    #[inline]
    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        // Most fit in a byte.
        if let Some((&first, rest)) = self.0.split_first()
            && first < 0x80
        {
            self.0 = rest;
            return Ok(u64::from(first));
        }
        self.long_u64()
    }

    fn long_u64(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("an integer is too long")
    }

    pub(super) fn i64(&mut self) -> Result<i64, Malformed> {
        let value = self.u64()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.u64()?).map_err(|_| "an integer is out of range")
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or("an event ends early")?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u64()?;
        if len > STRING_MAX as u64 {
            return Err("a string is too long");
        }
        self.take(len as usize)
    }

    pub(super) fn string(&mut self) -> Result<String, Malformed> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    /// A list: its length, then that many items of at least one byte each.
    pub(super) fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let len = self.u64()?;
        if len > self.0.len() as u64 {
            return Err("a list is longer than its event");
        }
        (0..len).map(|_| item(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_leb128_in_their_shortest_form() {
        let mut written = Vec::new();
        let mut expected = Vec::new();
        let values =
            (0..64).flat_map(|bit| [1 << bit, (1 << bit) - 1, 0x5555_5555_5555_5555 >> bit, !0 >> bit]);
        for value in values.clone() {
            written.put_u64(value);
            let mut rest: u64 = value;
            while rest >= 0x80 {
                expected.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            expected.push(rest as u8);
            assert_eq!(written, expected, "{value:#x}");
        }
        let mut fields = Fields(&written);
        assert!(values.clone().all(|value| fields.u64() == Ok(value)) && fields.0.is_empty());
    }
}
