//! Finds the files that hold a module's names.
//!
//! A name from the wrong file is worse than no name: a file is used only if its build-id or checksum proves that it belongs
//! to the program that ran.

use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::read::elf::ElfFile64;
use object::{Endianness, Object};

use super::image::{FileState, Image, Witness, build_id, hex};
use super::sources::SymbolSources;

/// Searches for files and records where it looked: an answer is valid as long as the same search finds the same files.
pub(super) struct Locator<'a> {
    sources: &'a SymbolSources,
    looked: RefCell<Vec<Witness>>,
    /// The answer may change without a change of the files looked for: a tree was searched without success, or a file exists
    /// that could not be opened (no memory, no descriptor).
    provisional: Cell<bool>,
}

impl<'a> Locator<'a> {
    pub(super) fn new(sources: &'a SymbolSources) -> Self {
        Locator { sources, looked: RefCell::default(), provisional: Cell::new(false) }
    }

    /// Opens a file.
    pub(super) fn open(&self, path: &Path) -> io::Result<Image> {
        // Read its state first, so that a change in between is noticed.
        let state = FileState::of(path);
        let exists = state.is_some();
        self.looked.borrow_mut().push(Witness { path: path.to_owned(), state });
        Image::open(path).inspect_err(|error| {
            if exists && error.raw_os_error().is_some() {
                self.provisional.set(true);
            }
        })
    }

    /// Every path searched; `None` if the answer depends on more than these files.
    pub(super) fn into_witnesses(self) -> Option<Vec<Witness>> {
        (!self.provisional.get()).then(|| self.looked.into_inner())
    }

    /// Where the recorded file may be, most likely place first, without searching trees.
    pub(super) fn candidates<'b>(
        &'b self,
        path: &'b Path,
        id: &'b [u8],
    ) -> impl Iterator<Item = PathBuf> + 'b {
        let inside = path.strip_prefix("/").unwrap_or(path);
        let in_sysroots = self.sources.sysroots.iter().map(move |root| root.join(inside));
        let filed = id.split_first().filter(|(_, rest)| !rest.is_empty());
        let filed = filed.map(|(first, rest)| format!(".build-id/{first:02x}/{}", hex(rest)));
        let elsewhere =
            self.sources.directories.iter().filter(|_| !id.is_empty()).flat_map(move |directory| {
                let name = path.file_name().map(|name| directory.join(name));
                [Some(directory.join(inside)), name, filed.as_ref().map(|filed| directory.join(filed))]
            });
        let copies = self.sources.copies.iter().filter(move |copy| copy.of == path);
        let copies = copies.map(|copy| copy.at.clone());
        in_sysroots.chain([path.to_owned()]).chain(elsewhere.flatten()).chain(copies)
    }

    /// The file with this build-id in the trees to be searched, if `accept` takes it.
    pub(super) fn in_trees(
        &self,
        id: &[u8],
        accept: impl Fn(&ElfFile64<'_, Endianness>) -> bool,
    ) -> Option<Image> {
        if id.is_empty() || self.sources.trees.is_empty() {
            return None;
        }
        let accept = |image: Image| {
            let accepted = ElfFile64::parse(image.bytes()).is_ok_and(|elf| accept(&elf));
            accepted.then_some(image)
        };
        let found = self.sources.trees.iter().find_map(|tree| tree.find(id, accept));
        match &found {
            Some(image) => {
                let (path, state) = (image.path.clone(), FileState::of(&image.path));
                self.looked.borrow_mut().push(Witness { path, state });
            }
            None => self.provisional.set(true),
        }
        found
    }

    /// The debug file in a `.build-id` directory.
    pub(super) fn by_build_id(&self, id: &[u8]) -> Option<Image> {
        // The first byte names the directory, the rest the file.
        let (first, rest) = id.split_first().filter(|(_, rest)| !rest.is_empty())?;
        let name = format!(".build-id/{first:02x}/{}.debug", hex(rest));
        self.sources.directories.iter().find_map(|directory| self.verified(&directory.join(&name), id))
    }

    /// A server's debug file for this build-id, if servers may be asked.
    pub(super) fn by_server(&self, id: &[u8]) -> Option<Image> {
        let path = self.sources.debuginfod.as_ref()?.debug_file(id)?;
        self.verified(&path, id)
    }

    /// The debug file that a stripped file links to by name and CRC-32: beside it, in `.debug` beside it, or mirrored in
    /// a debug directory. The stripped file was recorded at `path` and found at `here`.
    pub(super) fn by_debuglink(
        &self,
        path: &Path,
        here: &Path,
        file: &ElfFile64<'_, Endianness>,
    ) -> Option<Image> {
        let (name, checksum) = file.gnu_debuglink().ok()??;
        let name = Path::new(OsStr::from_bytes(name));
        if name.file_name() != Some(name.as_os_str()) {
            return None; // a name only: no way out of the directories searched
        }
        let id = file.build_id().ok()?;
        // Resolve links: /lib may be a link to /usr/lib, and the mirror has only the target.
        let resolved = path.canonicalize().ok();
        let paths = [Some(here), Some(path), resolved.as_deref()];
        let parents = paths.into_iter().flatten().filter_map(Path::parent);
        let mut candidates = Vec::new();
        for parent in parents {
            candidates.push(parent.join(name));
            candidates.push(parent.join(".debug").join(name));
            let inside = parent.strip_prefix("/").unwrap_or(parent);
            candidates.extend(self.sources.directories.iter().map(|root| root.join(inside).join(name)));
        }
        candidates.dedup();
        candidates.into_iter().filter(|candidate| candidate != path && candidate != here).find_map(
            |candidate| {
                let image = self.open(&candidate).ok()?;
                let same = crc32fast::hash(image.bytes()) == checksum
                    && (id.is_none() || build_id(image.bytes()).is_none_or(|found| Some(found) == id));
                same.then_some(image)
            },
        )
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
            .or_else(|| self.in_trees(id, |_| true))
            .or_else(|| self.by_server(id))
    }

    /// The file at `path` if it has this build-id.
    fn verified(&self, path: &Path, id: &[u8]) -> Option<Image> {
        let image = self.open(path).ok()?;
        (build_id(image.bytes()) == Some(id)).then_some(image)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_file_that_cannot_be_opened_now_makes_no_lasting_answer() {
        let root = std::env::temp_dir().join(format!("selfwind-locator-{}", std::process::id()));
        let file = root.join(".build-id/ab/cd.debug");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let sources = SymbolSources { directories: vec![root.clone()], ..SymbolSources::none() };
        let absent = Locator::new(&sources);
        assert!(absent.by_build_id(&[0xab, 0xcd]).is_none());
        assert!(absent.into_witnesses().is_some());
        // A socket exists and cannot be opened (ENXIO).
        let _socket = UnixListener::bind(&file).unwrap();
        let unopened = Locator::new(&sources);
        assert!(unopened.by_build_id(&[0xab, 0xcd]).is_none());
        assert!(unopened.into_witnesses().is_none());
        std::fs::remove_dir_all(root).unwrap();
    }
}
