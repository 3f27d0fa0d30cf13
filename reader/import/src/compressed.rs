//! Decompresses records (`perf record -z`): one zstd stream, split into records of its own.
//!
//! The decoder keeps the last bytes, a window's length of them, until the stream ends, so they come late by as much. What
//! stands between compressed records is therefore put in its place by the bytes unpacked so far ([`Unpacker::behind`]).

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Bytes that tell how long a frame's header is: magic and descriptor.
const DESCRIBED: usize = 5;
/// Bytes of a block's header.
const BLOCK: usize = 3;
/// The type of a block that repeats one byte.
const REPEATED: u32 = 1;
/// An empty last block, and room for a checksum.
const LAST: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];
const DAMAGED: &str = "its compressed records cannot be unpacked";

/// The stream so far.
#[derive(Default)]
pub(crate) struct Unpacker {
    decoder: FrameDecoder,
    is_begun: bool,
    window: u64,
    /// Packed bytes that make no whole block yet.
    packed: Vec<u8>,
    /// Unpacked bytes, of which `taken` were taken.
    bytes: Vec<u8>,
    taken: usize,
    /// All bytes that were taken.
    position: u64,
}

impl Unpacker {
    /// Unpacks more; what is wrong with it, if it is no such stream.
    pub(crate) fn feed(&mut self, packed: &[u8]) -> Result<(), &'static str> {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.packed.extend_from_slice(packed);
        let mut used = 0;
        while let Some(rest) = self.packed.get(used..)
            && let Some(len) = if self.is_begun { block_len(rest) } else { header_len(rest) }
            && let Some(mut part) = rest.get(..len)
        {
            if self.is_begun {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.is_begun = !self.decoder.decode_blocks(&mut part, one).map_err(|_| DAMAGED)?;
            } else {
                self.window = window(part);
                self.decoder.reset(&mut part).map_err(|_| DAMAGED)?;
                self.is_begun = true;
            }
            self.decoder.collect_to_writer(&mut self.bytes).map_err(|_| DAMAGED)?;
            used += len;
        }
        self.packed.drain(..used);
        Ok(())
    }

    /// Unpacks what was kept for later: there is no more.
    pub(crate) fn finish(&mut self) -> Result<(), &'static str> {
        if !self.is_begun {
            return Ok(());
        }
        // A block that was cut off is of no use.
        self.packed.clear();
        self.feed(&LAST)
    }

    /// The next `count` bytes, if there are so many.
    pub(crate) fn peek(&self, count: usize) -> Option<&[u8]> {
        self.bytes.get(self.taken..self.taken.checked_add(count)?)
    }

    pub(crate) fn take(&mut self, count: usize) {
        self.taken += count;
        self.position += count as u64;
    }

    /// How many bytes were taken.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// How many will have been taken when all is that was fed.
    pub(crate) fn behind(&self) -> u64 {
        self.position + (self.bytes.len() - self.taken) as u64 + if self.is_begun { self.window } else { 0 }
    }
}

/// Bytes of the frame's header at the beginning (RFC 8878, 3.1.1.1). None if more of it must come first.
fn header_len(bytes: &[u8]) -> Option<usize> {
    let descriptor = *bytes.get(DESCRIBED - 1)?;
    let is_single = descriptor >> 5 & 1 != 0;
    let size = match descriptor >> 6 {
        0 => usize::from(is_single),
        more => 1 << more,
    };
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    Some(DESCRIBED + usize::from(!is_single) + dictionary + size)
}

/// The window of a frame with this header; that of one whose size is known does not matter.
fn window(header: &[u8]) -> u64 {
    match (header.get(DESCRIBED - 1), header.get(DESCRIBED)) {
        (Some(descriptor), Some(window)) if descriptor >> 5 & 1 == 0 => {
            let base = 1u64 << (10 + (window >> 3));
            base + base / 8 * u64::from(window & 7)
        }
        _ => 0,
    }
}

/// Bytes of the block at the beginning with its header (RFC 8878, 3.1.1.2).
fn block_len(bytes: &[u8]) -> Option<usize> {
    let [a, b, c] = *bytes.first_chunk::<BLOCK>()?;
    let header = u32::from_le_bytes([a, b, c, 0]);
    let size = if header >> 1 & 3 == REPEATED { 1 } else { header >> 3 };
    // The last one is followed by a checksum, if there is one: the decoder takes what it needs.
    let checksum = if header & 1 != 0 { 4.min(bytes.len().saturating_sub(BLOCK + size as usize)) } else { 0 };
    Some(BLOCK + size as usize + checksum)
}
