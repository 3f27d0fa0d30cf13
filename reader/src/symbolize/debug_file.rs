//! Finds the files that hold a module's names.
//!
//! A name from the wrong file is worse than no name: nothing is used that does not prove, by build-id or
//! by checksum, that it belongs to what was running.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use object::read::elf::ElfFile64;
use object::{Endianness, Object};

use super::sources::SymbolSources;
use crate::attach::map_file;

/// A file mapped read-only.
#[derive(Debug)]
pub(super) struct Image {
    map: Mmap,
    /// Where it was found.
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

/// The build-id of an ELF image; `None` without one or if it is no ELF file.
pub(super) fn build_id(bytes: &[u8]) -> Option<&[u8]> {
    ElfFile64::<Endianness>::parse(bytes).ok()?.build_id().ok()?
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file that was looked for, and what was there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Witness {
    pub(super) path: PathBuf,
    /// `None` if nothing was there.
    pub(super) state: Option<FileState>,
}

/// What changes when a file does.
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

/// Looks for files, and remembers where it looked: as long as it would find the same, so would its answer be.
pub(super) struct Locator<'a> {
    sources: &'a SymbolSources,
    looked: RefCell<Vec<Witness>>,
}

impl<'a> Locator<'a> {
    pub(super) fn new(sources: &'a SymbolSources) -> Self {
        Locator { sources, looked: RefCell::default() }
    }

    /// Opens a file.
    pub(super) fn open(&self, path: &Path) -> io::Result<Image> {
        // Its state first: what changes in between shows as a change.
        self.looked.borrow_mut().push(Witness { path: path.to_owned(), state: FileState::of(path) });
        Image::open(path)
    }

    /// Everything that was looked for.
    pub(super) fn into_witnesses(self) -> Vec<Witness> {
        self.looked.into_inner()
    }

    /// The debug file filed under a build-id.
    pub(super) fn by_build_id(&self, id: &[u8]) -> Option<Image> {
        // One byte names the directory, the rest the file.
        let (first, rest) = id.split_first().filter(|(_, rest)| !rest.is_empty())?;
        let name = format!(".build-id/{first:02x}/{}.debug", hex(rest));
        self.sources.directories.iter().find_map(|directory| self.verified(&directory.join(&name), id))
    }

    /// The debug file that a server has for a build-id, if asking one was asked for.
    pub(super) fn by_server(&self, id: &[u8]) -> Option<Image> {
        let path = self.sources.debuginfod.as_ref()?.debug_file(id)?;
        self.verified(&path, id)
    }

    /// The debug file that a stripped file at `path` links to by name and CRC-32, beside it, in `.debug`
    /// beside it, or mirrored in a debug directory.
    pub(super) fn by_debuglink(&self, path: &Path, file: &ElfFile64<'_, Endianness>) -> Option<Image> {
        let (name, checksum) = file.gnu_debuglink().ok()??;
        let name = Path::new(OsStr::from_bytes(name));
        if name.file_name() != Some(name.as_os_str()) {
            return None; // a name only: no way out of the directories searched
        }
        let id = file.build_id().ok()?;
        // Links are resolved: /lib may be a link to /usr/lib, and the mirror has only the true one.
        let resolved = path.canonicalize().ok();
        let parents = [Some(path), resolved.as_deref()].into_iter().flatten().filter_map(Path::parent);
        let mut candidates = Vec::new();
        for parent in parents {
            candidates.push(parent.join(name));
            candidates.push(parent.join(".debug").join(name));
            let inside = parent.strip_prefix("/").unwrap_or(parent);
            candidates.extend(self.sources.directories.iter().map(|root| root.join(inside).join(name)));
        }
        candidates.dedup();
        candidates.into_iter().filter(|candidate| candidate != path).find_map(|candidate| {
            let image = self.open(&candidate).ok()?;
            let same = crc32fast::hash(image.bytes()) == checksum
                && (id.is_none() || build_id(image.bytes()).is_none_or(|found| Some(found) == id));
            same.then_some(image)
        })
    }

    /// The file shared by several debug files (`dwz`) that a debug file at `path` links to by name and build-id.
    pub(super) fn by_altlink(&self, path: &Path, file: &ElfFile64<'_, Endianness>) -> Option<Image> {
        let (name, id) = file.gnu_debugaltlink().ok()??;
        let named = path.parent()?.join(OsStr::from_bytes(name));
        let canonical =
            path.canonicalize().ok().and_then(|p| Some(p.parent()?.join(OsStr::from_bytes(name))));
        self.verified(&named, id)
            .or_else(|| self.verified(&canonical?, id))
            .or_else(|| self.by_build_id(id))
            .or_else(|| self.by_server(id))
    }

    /// The file at `path` if it has this build-id.
    fn verified(&self, path: &Path, id: &[u8]) -> Option<Image> {
        let image = self.open(path).ok()?;
        (build_id(image.bytes()) == Some(id)).then_some(image)
    }
}
