//! Split DWARF: units whose main part is in `.dwo` files, or in one `.dwp` package.
//!
//! A unit is used only if its id is the one that the program refers to.

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::SplitDwarfLoad;
use gimli::{Dwarf, DwarfPackage, EndianSlice};
use object::Endianness;
use object::read::elf::ElfFile64;

use super::dwarf_storage::{Reader, Storage, endian};
use super::locator::Locator;

/// The split units of a file.
pub(super) struct SplitFiles<'a> {
    storage: &'a Storage,
    locator: &'a Locator<'a>,
    /// Paths of files beside which packages and units may be.
    beside: Vec<PathBuf>,
    /// The package; searched when the first unit is requested.
    package: OnceCell<Option<DwarfPackage<Reader<'a>>>>,
}

impl<'a> SplitFiles<'a> {
    /// The split units of the program at one of these paths.
    pub(super) fn new(storage: &'a Storage, locator: &'a Locator<'a>, beside: Vec<PathBuf>) -> Self {
        SplitFiles { storage, locator, beside, package: OnceCell::new() }
    }

    /// The requested unit; `None` if it is not found.
    pub(super) fn load(&self, wanted: &SplitDwarfLoad<Reader<'a>>) -> Option<Arc<Dwarf<Reader<'a>>>> {
        let package = self.package.get_or_init(|| self.open_package());
        if let Some(package) = package
            && let Ok(Some(unit)) = package.find_cu(wanted.dwo_id, &wanted.parent)
        {
            return Some(Arc::new(unit));
        }
        let name = Path::new(OsStr::from_bytes(wanted.path.as_ref()?.slice()));
        let compiled_in = wanted.comp_dir.as_ref().map(|path| Path::new(OsStr::from_bytes(path.slice())));
        let told = compiled_in.map_or_else(|| name.to_owned(), |directory| directory.join(name));
        let directories = self.beside.iter().filter_map(|path| path.parent());
        let file_name = name.file_name()?;
        // A relative path starts where the compiler ran, not in the current directory.
        let candidates = told.is_absolute().then_some(told.clone());
        let mut candidates = candidates.into_iter().chain(directories.map(|path| path.join(file_name)));
        candidates.find_map(|path| self.open_unit(&path, wanted))
    }

    fn file(&self, path: &Path) -> Option<ElfFile64<'a, Endianness>> {
        let image = self.storage.images.alloc(self.locator.open(path).ok()?);
        ElfFile64::parse(image.bytes()).ok()
    }

    fn open_package(&self) -> Option<DwarfPackage<Reader<'a>>> {
        let packages = self.beside.iter().map(|path| crate::file_name::with_suffix(path, ".dwp"));
        let file = packages.into_iter().find_map(|path| self.file(&path))?;
        let empty = EndianSlice::new(&[], endian(&file));
        let section = |id: gimli::SectionId| {
            Ok::<_, gimli::Error>(id.dwo_name().map_or(empty, |name| self.storage.section(&file, name)))
        };
        DwarfPackage::load(section, empty).ok()
    }

    fn open_unit(&self, path: &Path, wanted: &SplitDwarfLoad<Reader<'a>>) -> Option<Arc<Dwarf<Reader<'a>>>> {
        let file = self.file(path)?;
        let empty = EndianSlice::new(&[], endian(&file));
        let mut unit = Dwarf::load(|id| {
            Ok::<_, gimli::Error>(id.dwo_name().map_or(empty, |name| self.storage.section(&file, name)))
        })
        .ok()?;
        let header = unit.units().next().ok()??;
        if unit.unit(header).ok()?.dwo_id != Some(wanted.dwo_id) {
            return None;
        }
        unit.make_dwo(&wanted.parent);
        Some(Arc::new(unit))
    }
}
