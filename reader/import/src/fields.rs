//! Reads little-endian fields from untrusted bytes.

/// The bytes that have not been read yet.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'b>(pub(crate) &'b [u8]);

impl<'b> Fields<'b> {
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.bytes(2)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.bytes(4)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.bytes(8)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// A string of perf's headers: its length, then the text, padded with zeros.
    pub(crate) fn text(&mut self) -> Option<String> {
        let length = self.u32()?;
        let bytes = self.bytes(length as usize)?;
        Some(String::from_utf8_lossy(until_zero(bytes)).into_owned())
    }
}

/// The bytes before the first zero.
pub(crate) fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}
