//! Decompresses records (`perf record -z`): one zstd stream, split into records of its own.
//!
//! The decoder holds back the last bytes, as many as its window is long, until the stream ends. A record that comes
//! between compressed ones is therefore ordered by the number of bytes unpacked so far ([`Unpacker::behind`]).

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Bytes from which the length of a frame's header follows: magic and descriptor.
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
    /// Compressed bytes of a block that is not complete yet.
    packed: Vec<u8>,
    /// Decompressed bytes, of which `taken` were consumed.
    bytes: Vec<u8>,
    taken: usize,
    /// Number of bytes consumed so far.
    position: u64,
}

impl Unpacker {
    /// Decompresses more. The error says what is wrong with the stream.
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

    /// Decompresses the rest, at the end of the stream.
    pub(crate) fn finish(&mut self) -> Result<(), &'static str> {
        if !self.is_begun {
            return Ok(());
        }
        // A truncated block cannot be used.
        self.packed.clear();
        self.feed(&LAST)
    }

    /// The next `count` bytes, if there are that many.
    pub(crate) fn peek(&self, count: usize) -> Option<&[u8]> {
        self.bytes.get(self.taken..self.taken.checked_add(count)?)
    }

    pub(crate) fn take(&mut self, count: usize) {
        self.taken += count;
        self.position += count as u64;
    }

    /// Number of bytes consumed so far.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Number of bytes consumed once everything fed so far is.
    pub(crate) fn behind(&self) -> u64 {
        self.position + (self.bytes.len() - self.taken) as u64 + if self.is_begun { self.window } else { 0 }
    }
}

/// Length of the frame header at the beginning (RFC 8878, 3.1.1.1); `None` if that takes more bytes.
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

/// The window size of a frame with this header. It does not matter for a frame of known size.
fn window(header: &[u8]) -> u64 {
    match (header.get(DESCRIBED - 1), header.get(DESCRIBED)) {
        (Some(descriptor), Some(window)) if descriptor >> 5 & 1 == 0 => {
            let base = 1u64 << (10 + (window >> 3));
            base + base / 8 * u64::from(window & 7)
        }
        _ => 0,
    }
}

/// Length of the block at the beginning, with its header (RFC 8878, 3.1.1.2).
fn block_len(bytes: &[u8]) -> Option<usize> {
    let [a, b, c] = *bytes.first_chunk::<BLOCK>()?;
    let header = u32::from_le_bytes([a, b, c, 0]);
    let size = if header >> 1 & 3 == REPEATED { 1 } else { header >> 3 };
    // A checksum may follow the last block; the decoder takes what it needs.
    let checksum = if header & 1 != 0 { 4.min(bytes.len().saturating_sub(BLOCK + size as usize)) } else { 0 };
    Some(BLOCK + size as usize + checksum)
}
