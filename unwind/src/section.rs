//! A section's bytes and the address they are about.

/// The bytes of an ELF section and its address in the program.
///
/// The bytes may be a private copy or come from the file: addresses inside them are relative to `address`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Section<'a> {
    /// The contents.
    pub bytes: &'a [u8],
    /// Where the contents are (or were) mapped; for a file, the virtual address of the section.
    pub address: u64,
}

impl<'a> Section<'a> {
    /// The offset of `address` in the bytes; `None` if it lies outside.
    pub fn offset_of(&self, address: u64) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.address)?).ok()?;
        (offset < self.bytes.len()).then_some(offset)
    }
}
