//! Writes a profile: events are collected in a block, and each block is written at once.

use std::io::{self, Write};

use super::block::{BLOCK_EVENTS, BLOCK_HEADER_LEN, BLOCK_MAX, BLOCK_TARGET, checksum};
use super::codec::{Previous, encode, encode_sample};
use super::event::Event;
use super::header::{MAGIC, VERSION};
use super::sample_ref::SampleRef;

/// Appends events to a profile.
pub struct ProfileWriter<W: Write> {
    sink: W,
    /// Block header (filled in at the end) and payload so far.
    block: Vec<u8>,
    previous: Previous,
    written: u64,
}

impl<W: Write> ProfileWriter<W> {
    /// Writes the file header to `sink`, which gets whole blocks and needs no buffer.
    pub fn new(mut sink: W) -> io::Result<Self> {
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&0u32.to_le_bytes());
        sink.write_all(&header)?;
        Ok(Self {
            sink,
            block: vec![0; BLOCK_HEADER_LEN],
            previous: Previous::default(),
            written: header.len() as u64,
        })
    }

    /// Adds an event; writes the block out when it is full.
    pub fn push(&mut self, event: &Event) -> io::Result<()> {
        let before = self.block.len();
        encode(event, &mut self.previous, &mut self.block);
        self.end_event(before)
    }

    /// Adds a sample. What it shares it shares with the one that was added before, in whichever way. How many of its frames,
    /// from the root, the block had of that one.
    pub fn push_sample(&mut self, sample_ref: SampleRef<'_>) -> io::Result<usize> {
        let before = self.block.len();
        let shared = encode_sample(sample_ref, &mut self.previous, &mut self.block);
        self.end_event(before)?;
        Ok(shared)
    }

    /// An event was added at this offset of the block.
    fn end_event(&mut self, before: usize) -> io::Result<()> {
        if self.block.len() - BLOCK_HEADER_LEN > BLOCK_MAX {
            self.block.truncate(before);
            let what = "an event does not fit in a block of the profile";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        if self.block.len() >= BLOCK_TARGET { self.flush() } else { Ok(()) }
    }

    /// Writes the current block. After this, nothing that was pushed is lost even if the writer is killed.
    pub fn flush(&mut self) -> io::Result<()> {
        let payload_len = self.block.len() - BLOCK_HEADER_LEN;
        if payload_len > 0 {
            let crc = checksum(BLOCK_EVENTS, &self.block[BLOCK_HEADER_LEN..]);
            self.block[0..4].copy_from_slice(&BLOCK_EVENTS.to_le_bytes());
            self.block[4..8].copy_from_slice(&(payload_len as u32).to_le_bytes());
            self.block[8..12].copy_from_slice(&crc.to_le_bytes());
            self.sink.write_all(&self.block)?;
            self.written += self.block.len() as u64;
            self.block.truncate(BLOCK_HEADER_LEN);
            self.previous.reset();
        }
        self.sink.flush()
    }

    /// Goes on with a profile, whose whole blocks are `written` bytes long.
    pub fn go_on(sink: W, written: u64) -> Self {
        let block = vec![0; BLOCK_HEADER_LEN];
        Self { sink, block, previous: Previous::default(), written }
    }

    /// Appends a [`super::NameSectionWriter`]'s section, behind what was pushed so far.
    pub fn append_names(&mut self, section: &[u8]) -> io::Result<()> {
        self.flush()?;
        self.sink.write_all(section)?;
        self.written += section.len() as u64;
        self.sink.flush()
    }

    /// What gets the blocks.
    pub fn sink(&self) -> &W {
        &self.sink
    }

    /// Bytes handed to the sink so far.
    pub fn bytes_written(&self) -> u64 {
        self.written
    }

    /// Writes out the rest and gives the sink back.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.sink)
    }
}
