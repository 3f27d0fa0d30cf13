//! The header of a profile: what tells it from other files, and which versions of the format can be read.

/// The first eight bytes of every profile.
pub const MAGIC: [u8; 8] = *b"SELFWIND";
/// The first bytes of perf's own files.
pub(super) const PERF_MAGIC: [u8; 8] = *b"PERFILE2";
/// The version this build writes.
pub const VERSION: u32 = 4;
/// The oldest version that it reads: the same without references to earlier modules.
pub(super) const OLDEST: u32 = 1;
/// Magic, version, reserved word.
pub(super) const HEADER_LEN: usize = 16;
