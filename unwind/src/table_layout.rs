//! The layout of a table: one definition for who writes tables and who looks rows up in them. `docs/table-file.md` has all of
//! its fields; changing any of them requires a new [`VERSION`].
//!
//! Offsets and lengths are in bytes; numbers are little-endian.

/// The first bytes of every table.
pub const MAGIC: [u8; 8] = *b"SWUNWIND";
/// Version of the layout.
pub const VERSION: u32 = 5;
/// Length of the header.
pub const HEADER: usize = 152;
/// Offset of the build-id.
pub const BUILD_ID_AT: usize = 68;
/// Longest build-id that a table can carry.
pub const BUILD_ID_MAX: usize = 48;
/// Offset of the identity of the source file.
pub const SOURCE_AT: usize = 120;
/// log2 of the bytes of code in a block.
pub const BLOCK_SHIFT: u32 = 8;
/// log2 of the blocks that share a u32 row number.
pub const GROUP_SHIFT: u32 = 8;
/// Offset from which on bytes are in the checksum.
pub const CHECKED_FROM: usize = 32;
/// Number of independent lanes of the checksum.
const LANES: usize = 8;

/// Checksum of `bytes`, whose length is a multiple of 8. It detects damage, not malice.
///
/// Word `n` goes to lane `n % 8`, so that the multiplications of different lanes overlap.
pub fn checksum(bytes: &[u8]) -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(STEP).rotate_left(31);
    let (words, _) = bytes.as_chunks::<8>();
    let (groups, rest) = words.as_chunks::<LANES>();
    let mut lanes = [0xcbf2_9ce4_8422_2325; LANES];
    for group in groups.iter().map(<[_; LANES]>::as_slice).chain([rest]) {
        for (lane, word) in lanes.iter_mut().zip(group) {
            *lane = mix(*lane, u64::from_le_bytes(*word));
        }
    }
    lanes.into_iter().fold(words.len() as u64, mix)
}
