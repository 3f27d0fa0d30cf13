//! Reads a profile, one block in memory at a time.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use super::block::{BLOCK_EVENTS, BLOCK_HEADER_LEN, BLOCK_MAX, BLOCK_NAMES, checksum, frame_block};
use super::codec::{Decoded, Previous, decode};
use super::error::ProfileError;
use super::event::{Event, Sample};
use super::fields::Fields;
use super::header::{HEADER_LEN, MAGIC, OLDEST, PERF_MAGIC, VERSION};
use super::name_section::{Assembly, NameSection};
use super::sample_ref::SampleRef;
use crate::input;

/// How the file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// At the end of a block.
    Complete,
    /// Inside a block that begins at this byte: the writer was interrupted, or the copy is partial.
    Truncated {
        /// Where the incomplete block begins.
        offset: u64,
    },
    /// At a damaged block; what follows it was not read.
    Damaged {
        /// Where the damaged block begins.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl Tail {
    /// A note about a file of `len` bytes that does not end regularly.
    pub fn remark(self, len: u64) -> Option<String> {
        let (offset, cause) = match self {
            Tail::Complete => return None,
            Tail::Truncated { offset } => (offset, "ends inside a block".to_owned()),
            Tail::Damaged { offset, what } => (offset, format!("is damaged at byte {offset} ({what})")),
        };
        let left_out = len.saturating_sub(offset);
        Some(format!(
            "the file {cause}; everything before byte {offset} was read, {left_out} bytes were skipped"
        ))
    }
}

/// The events of a profile, in order. Ends after the first error.
pub struct ProfileReader<R: Read> {
    source: R,
    path: String,
    block: Vec<u8>,
    /// Next event in `block`.
    position: usize,
    /// Where `block` begins in the file, and where the next one does.
    block_offset: u64,
    next_offset: u64,
    previous: Previous,
    /// The names, if they are wanted.
    names: Option<Assembly>,
    tail: Option<Tail>,
    failed: bool,
    skipped: Skipped<R>,
}

/// Blocks that are not read.
struct Skipped<R> {
    /// Where they begin, the last one first.
    blocks: Vec<u64>,
    /// Moves the source on by so many bytes.
    seek: fn(&mut R, i64) -> io::Result<()>,
}

impl ProfileReader<File> {
    /// Opens a file and checks its header.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ProfileError> {
        let name = input::name(path.as_ref()).into_owned();
        let open = || {
            let file = File::open(&path)?;
            if file.metadata()?.is_dir() { Err(io::ErrorKind::IsADirectory.into()) } else { Ok(file) }
        };
        let file = open().map_err(|cause| ProfileError::Open { path: name.clone(), cause })?;
        Self::new(file, name)
    }

    /// Skips the blocks at these ascending offsets, unread and unchecked. The first block must not be among them.
    pub(crate) fn skipping(mut self, mut blocks: Vec<u64>) -> Self {
        blocks.reverse();
        self.skipped = Skipped { blocks, seek: |file, bytes| file.seek_relative(bytes) };
        self
    }
}

impl<R: Read> ProfileReader<R> {
    /// Reads from `source` and checks the header; `path` names it in errors. Whole blocks are read, a
    /// buffer is not needed.
    pub fn new(mut source: R, path: impl Into<String>) -> Result<Self, ProfileError> {
        let path = path.into();
        let mut header = [0; HEADER_LEN];
        let got = read_full(&mut source, &mut header)
            .map_err(|cause| ProfileError::Read { path: path.clone(), cause })?;
        if got == 0 {
            return Err(ProfileError::Empty { path });
        }
        if header.starts_with(&PERF_MAGIC) {
            return Err(ProfileError::PerfData { path });
        }
        if got < HEADER_LEN || header[..8] != MAGIC {
            return Err(ProfileError::NotAProfile { path });
        }
        let found = word(&header, 8);
        if !(OLDEST..=VERSION).contains(&found) {
            return Err(ProfileError::Version { path, found });
        }
        Ok(Self {
            source,
            path,
            block: Vec::new(),
            position: 0,
            block_offset: HEADER_LEN as u64,
            next_offset: HEADER_LEN as u64,
            previous: Previous::default(),
            names: None,
            tail: None,
            failed: false,
            skipped: Skipped { blocks: Vec::new(), seek: |_, _| Ok(()) },
        })
    }

    /// Reads everything but samples, which takes a fraction of the time.
    pub fn without_samples(mut self) -> Self {
        self.previous.without_samples = true;
        self
    }

    /// Keeps the names that are stored in the file, for [`Self::take_names`].
    pub fn with_names(mut self) -> Self {
        self.names = Some(Assembly::default());
        self
    }

    /// The names read so far, if they were wanted and are complete.
    pub fn take_names(&mut self) -> Option<NameSection> {
        self.names.take()?.finish()
    }

    /// Copies everything but names to `out`: the header and all whole blocks. Gives the bytes written.
    ///
    /// # Errors
    /// When the profile cannot be read or is damaged, or `out` cannot be written.
    pub fn copy_without_names(mut self, out: &mut impl io::Write) -> Result<u64, ProfileError> {
        let cannot = |path: &str, cause| ProfileError::Copy { path: path.into(), cause };
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        let mut written = 0;
        loop {
            out.write_all(&bytes).map_err(|cause| cannot(&self.path, cause))?;
            written += bytes.len() as u64;
            bytes.clear();
            let Some(kind) = self.read_block()? else {
                return match self.tail {
                    Some(Tail::Damaged { offset, what }) => {
                        Err(ProfileError::Corrupt { path: self.path, offset, what })
                    }
                    _ => Ok(written),
                };
            };
            if kind != BLOCK_NAMES {
                frame_block(kind, &self.block, &mut bytes);
            }
        }
    }

    /// How the file ended; `None` until the events are exhausted, and after an error.
    pub fn tail(&self) -> Option<Tail> {
        self.tail
    }

    /// Bytes of the file that were read and found intact.
    pub fn bytes(&self) -> u64 {
        self.next_offset
    }

    /// Ends the events at a damaged block. In the first one nothing precedes it.
    fn damaged<T>(&mut self, what: &'static str) -> Result<Option<T>, ProfileError> {
        let offset = self.block_offset;
        if offset == HEADER_LEN as u64 {
            return Err(ProfileError::Corrupt { path: self.path.clone(), offset, what });
        }
        self.tail = Some(Tail::Damaged { offset, what });
        Ok(None)
    }

    fn unreadable(&self, cause: io::Error) -> ProfileError {
        ProfileError::Read { path: self.path.clone(), cause }
    }

    /// Reads the next block that holds events. False at the end of the file.
    fn next_block(&mut self) -> Result<bool, ProfileError> {
        while let Some(kind) = self.read_block()? {
            match (kind, &mut self.names) {
                (BLOCK_EVENTS, _) => return Ok(true),
                (BLOCK_NAMES, Some(names)) => names.block(&self.block),
                _ => {}
            }
        }
        self.block.clear();
        Ok(false)
    }

    /// Reads the next block and gives its kind; `None` at the end of the file.
    fn read_block(&mut self) -> Result<Option<u32>, ProfileError> {
        self.block_offset = self.next_offset;
        self.position = 0;
        self.block.clear();
        self.previous.reset();
        let mut header = [0; BLOCK_HEADER_LEN];
        let got = read_full(&mut self.source, &mut header).map_err(|e| self.unreadable(e))?;
        let truncated = Tail::Truncated { offset: self.block_offset };
        if got < BLOCK_HEADER_LEN {
            self.tail = Some(if got == 0 { Tail::Complete } else { truncated });
            return Ok(None);
        }
        let (kind, len, crc) = (word(&header, 0), word(&header, 4) as usize, word(&header, 8));
        if len > BLOCK_MAX {
            return self.damaged("the length of a block");
        }
        if self.skipped.blocks.last() == Some(&self.block_offset) {
            self.skipped.blocks.pop();
            (self.skipped.seek)(&mut self.source, len as i64).map_err(|e| self.unreadable(e))?;
            self.next_offset += (BLOCK_HEADER_LEN + len) as u64;
            return Ok(Some(kind));
        }
        let got = (&mut self.source).take(len as u64).read_to_end(&mut self.block);
        let got = got.map_err(|e| self.unreadable(e))?;
        if got < len {
            // Names come last: without them the profile is as it was before they were added.
            self.tail = Some(if kind == BLOCK_NAMES { Tail::Complete } else { truncated });
            return Ok(None);
        }
        if checksum(kind, &self.block) != crc {
            return self.damaged("the checksum of a block");
        }
        self.next_offset += (BLOCK_HEADER_LEN + len) as u64;
        Ok(Some(kind))
    }

    fn next_event(&mut self) -> Result<Option<Decoded>, ProfileError> {
        loop {
            while self.position < self.block.len() {
                let mut fields = Fields(&self.block[self.position..]);
                let event = decode(&mut fields, &mut self.previous);
                self.position = self.block.len() - fields.0.len();
                match event {
                    Ok(Some(event)) => return Ok(Some(event)),
                    Ok(None) => {}
                    Err(what) => return self.damaged(what),
                }
            }
            if !self.next_block()? {
                return Ok(None);
            }
        }
    }

    /// Reads all remaining samples, and skips everything else. Returns how the file ends.
    ///
    /// # Errors
    /// As the iterator gives them; no sample follows.
    pub fn for_each_sample(
        mut self,
        mut each: impl FnMut(SampleRef<'_>),
    ) -> Result<Option<Tail>, ProfileError> {
        while let Some(event) = self.next_event()? {
            if let Decoded::Sample(sample, shared) = &event {
                each(SampleRef { sample, frames: &self.previous.sample.frames, shared: *shared });
            }
        }
        Ok(self.tail)
    }
}

impl<R: Read> Iterator for ProfileReader<R> {
    type Item = Result<Event, ProfileError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.tail.is_some() || self.failed {
            return None;
        }
        let event = self.next_event();
        self.failed = event.is_err();
        let owned = |decoded| match decoded {
            Decoded::Sample(sample, _) => {
                let frames = self.previous.sample.frames.iter().rev().copied().collect();
                Event::Sample(Sample { frames, ..sample })
            }
            Decoded::Other(event) => event,
        };
        event.map(|event| event.map(owned)).transpose()
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reads until `buffer` is full or the source ends.
fn read_full(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match source.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}
