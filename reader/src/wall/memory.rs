//! Reads the memory of another process for a walk, page by page through `/proc/PID/mem`.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use unwind::Memory;

use crate::proc::PAGE;

const WORD: u64 = 8;
/// Maximum number of pages per walk.
const PAGES: usize = 4096;
/// Pages from the stack pointer on that are read in the first read.
const FIRST: usize = 4;

/// The memory of a process, for walking a blocked thread.
pub(super) struct RemoteMemory<'f> {
    file: &'f File,
    /// `None` for pages that cannot be read.
    pages: HashMap<u64, Option<Box<[u8]>>>,
    /// For each word value that a walk read, where it was last read.
    addresses: HashMap<u64, u64>,
}

impl<'f> RemoteMemory<'f> {
    /// For the process with this `mem` file. Most reads will be just above `sp`.
    pub(super) fn new(file: &'f File, sp: u64) -> Self {
        let mut memory = Self { file, pages: HashMap::new(), addresses: HashMap::new() };
        let first = sp & !(PAGE - 1);
        let mut bytes = vec![0; FIRST * PAGE as usize];
        let len = file.read_at(&mut bytes, first).unwrap_or(0);
        for (page, at) in bytes[..len].chunks_exact(PAGE as usize).zip((first..).step_by(PAGE as usize)) {
            memory.pages.insert(at, Some(page.into()));
        }
        memory
    }

    /// The address where the walk read this word.
    pub(super) fn address_of(&self, word: u64) -> Option<u64> {
        self.addresses.get(&word).copied()
    }

    /// The byte at an address.
    pub(super) fn byte(&mut self, address: u64) -> Option<u8> {
        let page = address & !(PAGE - 1);
        if !self.pages.contains_key(&page) {
            if self.pages.len() >= PAGES {
                return None;
            }
            let mut bytes = vec![0; PAGE as usize];
            let read = self.file.read_exact_at(&mut bytes, page).ok();
            self.pages.insert(page, read.map(|()| bytes.into()));
        }
        self.pages.get(&page)?.as_ref()?.get((address - page) as usize).copied()
    }

    /// The eight bytes at an address, without recording the address.
    pub(super) fn word(&mut self, address: u64) -> Option<u64> {
        let page = address & !(PAGE - 1);
        self.byte(address)?;
        let at = (address - page) as usize;
        if let Some(Some(bytes)) = self.pages.get(&page)
            && let Some(word) = bytes.get(at..at + WORD as usize)
        {
            return word.first_chunk().map(|word| u64::from_le_bytes(*word));
        }
        let mut word = [0; WORD as usize];
        for (byte, address) in word.iter_mut().zip(address..) {
            *byte = self.byte(address)?;
        }
        Some(u64::from_le_bytes(word))
    }
}

impl Memory for RemoteMemory<'_> {
    fn read(&mut self, address: u64) -> Option<u64> {
        address.checked_add(WORD)?;
        let word = self.word(address)?;
        self.addresses.insert(word, address);
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_ourselves() {
        let words: Vec<u64> = (0..2048).collect();
        let file = File::open("/proc/self/mem").unwrap();
        let start = words.as_ptr() as u64;
        let mut memory = RemoteMemory::new(&file, start);
        for (address, expected) in (start..).step_by(8).zip(&words) {
            assert_eq!(memory.read(address), Some(*expected));
        }
        assert_eq!(memory.address_of(77), Some(start + 77 * 8));
        // Across a page boundary.
        let border = (start + PAGE) & !(PAGE - 1);
        let (below, above) = (memory.word(border - 8).unwrap(), memory.word(border).unwrap());
        assert_eq!(memory.word(border - 4), Some(below >> 32 | above << 32));
        assert_eq!((memory.read(0), memory.read(u64::MAX - 3)), (None, None));
    }
}
