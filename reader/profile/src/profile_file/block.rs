//! The blocks of a profile: their kinds, sizes and checksums.

/// Kind, length, checksum.
pub(super) const BLOCK_HEADER_LEN: usize = 12;
/// Block kinds: a run of events, a part of the names.
pub(super) const BLOCK_EVENTS: u32 = 1;
pub(super) const BLOCK_NAMES: u32 = 2;
/// A block is written out when its payload reaches this many bytes.
pub(super) const BLOCK_TARGET: usize = 60 << 10;
/// Maximum payload size, for writers and readers.
pub(super) const BLOCK_MAX: usize = 1 << 20;

/// Checksum of a block: CRC-32 (IEEE) over kind, length and payload.
pub(super) fn checksum(kind: u32, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&kind.to_le_bytes());
    hasher.update(&(payload.len() as u32).to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

/// Appends a block to `out`.
pub(super) fn frame_block(kind: u32, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&checksum(kind, payload).to_le_bytes());
    out.extend_from_slice(payload);
}
