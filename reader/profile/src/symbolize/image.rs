//! An ELF file to read names from: its contents, its identity, and whether it has changed.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use object::read::elf::ElfFile64;
use object::{Endianness, Object};

use crate::mapped_file::map_file;

/// A file mapped read-only.
#[derive(Debug)]
pub(super) struct Image {
    map: Mmap,
    /// Its path.
    pub(super) path: PathBuf,
}

impl Image {
    /// Maps a regular, non-empty file.
    pub(super) fn open(path: &Path) -> io::Result<Image> {
        Ok(Image { map: map_file(path)?, path: path.to_owned() })
    }

    /// Its content.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }
}

/// The build-id of an ELF image; `None` without one or if it is not an ELF file.
pub(super) fn build_id(bytes: &[u8]) -> Option<&[u8]> {
    ElfFile64::<Endianness>::parse(bytes).ok()?.build_id().ok()?
}

/// The bytes in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A path where a file was looked for, and what was there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Witness {
    pub(super) path: PathBuf,
    /// `None` if there was no file.
    pub(super) state: Option<FileState>,
}

/// Changes whenever the file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileState {
    pub(super) inode: u64,
    pub(super) len: u64,
    pub(super) changed_ns: i64,
}

impl FileState {
    /// The state of the file at `path` now.
    pub(super) fn of(path: &Path) -> Option<FileState> {
        let metadata = std::fs::metadata(path).ok()?;
        let changed_ns = metadata.ctime().saturating_mul(1_000_000_000).saturating_add(metadata.ctime_nsec());
        Some(FileState { inode: metadata.ino(), len: metadata.len(), changed_ns })
    }
}
