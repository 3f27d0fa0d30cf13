//! Maps files for reading. The only `unsafe` code of this library is here.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use memmap2::Mmap;
use nix::fcntl::OFlag;

/// Maps a regular, non-empty file for reading: an ELF file, a table.
pub fn map_file(path: &Path) -> io::Result<Mmap> {
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file with content"));
    }
    // SAFETY: the mapping is read-only and private, and is only read as plain bytes, for which every value is valid.
    // That the file is not cut short meanwhile is what the dynamic loader, which maps the same files, relies on too:
    // installers and linkers replace files instead of rewriting them.
    unsafe { Mmap::map(&file) }
}
