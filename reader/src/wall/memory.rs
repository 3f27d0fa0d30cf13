//! Reads the memory of another process for a walk, page by page through `/proc/PID/mem`.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use foldhash::fast::FixedState;
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
    /// The pages that were read; `None` for those that cannot be.
    pages: Vec<Option<Box<[u8]>>>,
    /// Their indexes, by address.
    indexes: HashMap<u64, usize, FixedState>,
    /// Address and index of the last one that was used.
    last: (u64, usize),
    /// For each word value that a walk read, where it was last read.
    addresses: HashMap<u64, u64, FixedState>,
    /// There is no memory any more: the process is exiting, or has executed another program.
    is_gone: bool,
}

impl<'f> RemoteMemory<'f> {
    /// For the process with this `mem` file. Most reads will be just above `sp`.
    pub(super) fn new(file: &'f File, sp: u64) -> Self {
        let mut memory = Self {
            file,
            pages: Vec::new(),
            indexes: HashMap::default(),
            // No page has this address.
            last: (u64::MAX, 0),
            addresses: HashMap::default(),
            is_gone: false,
        };
        let first = sp & !(PAGE - 1);
        let mut bytes = vec![0; FIRST * PAGE as usize];
        let read = file.read_at(&mut bytes, first);
        // What is not mapped is an error instead.
        memory.is_gone = matches!(read, Ok(0));
        let len = read.unwrap_or(0);
        for (page, at) in bytes[..len].chunks_exact(PAGE as usize).zip((first..).step_by(PAGE as usize)) {
            memory.add(at, Some(page.into()));
        }
        memory
    }

    /// Whether there was no memory any more when this was made. Threads that exit still seem to be in their last system call.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// The address where the walk read this word.
    pub(super) fn address_of(&self, word: u64) -> Option<u64> {
        self.addresses.get(&word).copied()
    }

    /// The byte at an address.
    pub(super) fn byte(&mut self, address: u64) -> Option<u8> {
        self.part(address, 1)?.first().copied()
    }

    /// The eight bytes at an address, without recording the address.
    pub(super) fn word(&mut self, address: u64) -> Option<u64> {
        if let Some(word) = self.part(address, WORD)?.first_chunk() {
            return Some(u64::from_le_bytes(*word));
        }
        self.bytes(address, WORD)?.first_chunk().map(|word| u64::from_le_bytes(*word))
    }

    /// The word at `offset` of the structure at `base`.
    pub(super) fn field(&mut self, base: u64, offset: u16) -> Option<u64> {
        self.word(base.checked_add(offset.into())?)
    }

    /// A field of 32 bits.
    pub(super) fn half(&mut self, base: u64, offset: u16) -> Option<u32> {
        Some(self.word(base.checked_add(offset.into())?)? as u32)
    }

    /// The `len` bytes from an address on.
    pub(super) fn bytes(&mut self, address: u64, len: u64) -> Option<Vec<u8>> {
        let end = address.checked_add(len)?;
        let (mut bytes, mut at) = (Vec::new(), address);
        while at < end {
            let part = self.part(at, end - at)?;
            bytes.extend_from_slice(part);
            at += part.len() as u64;
        }
        Some(bytes)
    }

    /// Whether these bytes are at an address.
    pub(super) fn holds(&mut self, address: u64, mut bytes: &[u8]) -> bool {
        let mut at = address;
        while !bytes.is_empty() {
            let Some(part) = self.part(at, bytes.len() as u64) else { return false };
            let Some(rest) = bytes.strip_prefix(part) else { return false };
            (at, bytes) = (at.wrapping_add(part.len() as u64), rest);
        }
        true
    }

    /// The bytes from an address on, up to `len` or the end of the page: at least one.
    fn part(&mut self, address: u64, len: u64) -> Option<&[u8]> {
        let page = address & !(PAGE - 1);
        if self.last.0 != page {
            let index = match self.indexes.get(&page) {
                Some(index) => *index,
                None if self.pages.len() >= PAGES => return None,
                None => {
                    let mut bytes = vec![0; PAGE as usize];
                    let read = self.file.read_exact_at(&mut bytes, page).ok();
                    self.add(page, read.map(|()| bytes.into()))
                }
            };
            self.last = (page, index);
        }
        let start = address - page;
        let end = start.saturating_add(len).min(PAGE);
        self.pages.get(self.last.1)?.as_ref()?.get(start as usize..end as usize)
    }

    fn add(&mut self, page: u64, bytes: Option<Box<[u8]>>) -> usize {
        let index = self.pages.len();
        self.pages.push(bytes);
        self.indexes.insert(page, index);
        index
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
    fn a_process_that_has_ended_has_no_memory() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let file = File::open(format!("/proc/{}/mem", child.id())).unwrap();
        // Nothing is mapped at the first address, which is something else.
        assert!(!RemoteMemory::new(&file, 8).is_gone());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(RemoteMemory::new(&file, 8).is_gone());
    }

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
        assert_eq!((memory.field(start, 16), memory.half(start, 24)), (Some(2), Some(3)));
        assert_eq!(memory.bytes(start + 7, 3), Some(vec![0, 1, 0]));
        let all: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(
            (memory.bytes(start, 16384), memory.bytes(start, 0)),
            (Some(all.clone()), Some(Vec::new()))
        );
        assert!(memory.holds(start + 1, &all[1..9000]) && !memory.holds(start, &all[1..9000]));
        assert_eq!((memory.bytes(0, 8), memory.bytes(u64::MAX - 2, 8)), (None, None));
        // Across a page boundary.
        let border = (start + PAGE) & !(PAGE - 1);
        let (below, above) = (memory.word(border - 8).unwrap(), memory.word(border).unwrap());
        assert_eq!(memory.word(border - 4), Some(below >> 32 | above << 32));
        assert_eq!((memory.read(0), memory.read(u64::MAX - 3)), (None, None));
    }
}
