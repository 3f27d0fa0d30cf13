//! The fields of durable records' payloads: numbers, little-endian without padding, and strings behind them.

/// The fixed part of a payload under construction; the largest is that of `Process`.
pub(crate) struct Fixed {
    bytes: [u8; 64],
    len: usize,
}

impl Default for Fixed {
    fn default() -> Self {
        Self { bytes: [0; 64], len: 0 }
    }
}

impl Fixed {
    fn put(&mut self, value: &[u8]) -> &mut Self {
        let end = self.len + value.len();
        if let Some(to) = self.bytes.get_mut(self.len..end) {
            to.copy_from_slice(value);
            self.len = end;
        }
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// The length of a following part. The log, which knows the limit, rejects parts that do not fit a u32.
    pub(crate) fn len(&mut self, part: &[u8]) -> &mut Self {
        self.u32(part.len() as u32)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// The remaining fields of a payload being parsed.
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Self(payload)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*value))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*value))
    }

    pub(crate) fn take(&mut self, len: u32) -> Option<&'a [u8]> {
        let (value, rest) = self.0.split_at_checked(len as usize)?;
        self.0 = rest;
        Some(value)
    }
}
