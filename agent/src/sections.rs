//! Provides an object's unwind information to the walker: in place, as a private copy, from a table file, or as a table
//! compiled now.

use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI64, Ordering};

use compilation::{compile, debug_frame, go_frame};
use platform::activity::Active;
use unwind::elf_file::ElfFile;
use unwind::elf_image::{ElfImage, ProgramHeader};
use unwind::go_table::GoTable;
use unwind::{LateTable, Module, Section, Table, table_file};

use crate::kernel::{self, File};

/// Largest file that is mapped to search for sections.
const LARGEST_FILE: u64 = 4 << 30;

/// Memory that a module refers to.
#[derive(Default)]
pub(crate) struct SectionMemory {
    copies: Vec<Box<[u8]>>,
    table: Option<Mapping>,
    late: Option<Box<Late>>,
}

/// A table file that does not exist yet.
struct Late {
    table: LateTable,
    file: TableFile,
}

impl Drop for Late {
    fn drop(&mut self) {
        if let Some(table) = self.table.get() {
            let bytes = table.as_bytes();
            // SAFETY: the handler has mapped them for the table, which nobody uses any more.
            unsafe { kernel::unmap(bytes.as_ptr().cast_mut(), bytes.len()) };
        }
    }
}

impl Late {
    fn new(file: TableFile) -> Box<Late> {
        // SAFETY: the file owns both, does not change, and is dropped after the table.
        let table = unsafe {
            LateTable::new(&*core::ptr::from_ref(file.path.as_c_str()), &*core::ptr::from_ref(&*file.key))
        };
        Box::new(Late { table, file })
    }
}

/// The name of a table file.
struct TableFile {
    path: CString,
    /// The object's build-id, or else the key of its file.
    key: Vec<u8>,
}

impl TableFile {
    fn new(directory: &[u8], key: Vec<u8>) -> Option<TableFile> {
        let mut buffer = [0; table_file::FILE_NAME_MAX];
        let name = table_file::name(&key, &mut buffer)?;
        let path = CString::new([directory, b"/", name.as_bytes()].concat()).ok()?;
        Some(TableFile { path, key })
    }

    /// Maps it and gives `module` the table, if it is trusted and made for this key. The mapping must be kept next to the module.
    fn use_for(&self, module: &mut Module<'static>) -> Option<Mapping> {
        let mapping = Mapping::of_table(&self.path)?;
        // SAFETY: the caller keeps the mapping.
        let table = unsafe { extend_table(mapping.bytes()) };
        module.table = Some(table.filter(|table| table.build_id() == self.key)?);
        Some(mapping)
    }
}

/// A read-only mapping of a whole file.
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is read-only and owned by this value.
unsafe impl Send for Mapping {}
// SAFETY: the mapping is read-only, so shared references are sound.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: owned by this value, which nobody else refers to any more.
        unsafe { kernel::unmap(self.base.as_ptr(), self.bytes) };
    }
}

impl Mapping {
    /// Maps the file of a loaded object.
    fn of_object(path: &[u8]) -> Option<Mapping> {
        let file = File::read_only(&CString::new(path).ok()?).ok()?;
        let status = file.status().ok()?;
        Self::of(&file, &status, 0)
    }

    /// Maps a table file that only this user or root can have written.
    fn of_table(path: &CStr) -> Option<Mapping> {
        let file = File::strict(path).ok()?;
        let status = file.status().ok()?;
        if !table_file::is_trusted(status.owner, status.mode, kernel::user_id()) {
            return None;
        }
        // The checksum reads all of it, so populate the pages at once.
        Self::of(&file, &status, libc::MAP_POPULATE)
    }

    fn of(file: &File, status: &kernel::Status, flags: i32) -> Option<Mapping> {
        if status.size == 0 || status.size > LARGEST_FILE {
            return None;
        }
        let bytes = status.size as usize;
        let base = file.map(bytes, libc::PROT_READ, libc::MAP_PRIVATE | flags).ok()?;
        Some(Mapping { base, bytes })
    }

    /// Whether the file has these program headers.
    fn has(&self, headers: &[ProgramHeader]) -> bool {
        /// `e_phoff`.
        const OFFSET_AT: usize = 32;
        let length = size_of_val(headers);
        // SAFETY: the headers' own memory, which has no padding.
        let headers = unsafe { core::slice::from_raw_parts(headers.as_ptr().cast::<u8>(), length) };
        let at = self.bytes().get(OFFSET_AT..).and_then(|rest| rest.first_chunk());
        let rest = at.and_then(|at| self.bytes().get(u64::from_le_bytes(*at) as usize..));
        rest.is_some_and(|rest| rest.starts_with(headers))
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: a readable mapping of this length. If the file is truncated meanwhile, access faults; table files
        // belong to the user, and for loaded objects the loader's own mappings have the same property.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.bytes) }
    }
}

/// `directory`, if only this user or root can change its entries.
pub(crate) fn trusted_directory(directory: Vec<u8>) -> Option<Vec<u8>> {
    let path = CString::new(directory.as_slice()).ok()?;
    let status = File::strict(&path).ok()?.status().ok()?;
    let trusted = table_file::is_trusted_directory(status.owner, status.mode, kernel::user_id());
    trusted.then_some(directory)
}

/// Modification time of the table directory when it was last checked.
static TABLES_CHANGED: AtomicI64 = AtomicI64::new(0);

/// Whether tables may have been added to `directory` since the last check.
pub(crate) fn have_changed(directory: &[u8]) -> bool {
    let changed = || {
        let _active = Active::enter()?;
        let status = File::strict(&CString::new(directory).ok()?).ok()?.status().ok()?;
        Some(TABLES_CHANGED.swap(status.modified, Ordering::Relaxed) != status.modified)
    };
    changed().unwrap_or(false)
}

/// The key of the file of an object without a build-id. `None` if there is no such file, or if it has been replaced since it
/// was loaded.
fn file_key(headers: &[ProgramHeader], path: &[u8]) -> Option<Vec<u8>> {
    // The vdso's path and the agent's own are none.
    path.strip_prefix(b"/")?;
    let file = File::read_only(&CString::new(path).ok()?).ok()?;
    let status = file.status().ok()?;
    let same = Mapping::of(&file, &status, 0)?.has(headers);
    same.then(|| table_file::file_key(&status.source()).to_vec())
}

/// Completes `module`'s unwind information and keeps the memory that it refers to.
pub(crate) fn keep(
    module: &mut Module<'static>,
    image: &ElfImage<'_>,
    headers: &[ProgramHeader],
    path: &[u8],
    in_place: bool,
    tables: Option<&[u8]>,
) -> SectionMemory {
    let mut kept = SectionMemory::default();
    // No file may be opened under a seccomp filter.
    let active = Active::enter();
    let may_open = active.is_some();
    if let (Some(directory), true) = (tables, may_open) {
        let key = image.build_id.map(<[u8]>::to_vec).or_else(|| file_key(headers, path));
        if let Some(file) = key.and_then(|key| TableFile::new(directory, key)) {
            kept.use_table(module, file);
        }
    }
    if image.eh_frame_hdr.is_none() {
        if may_open {
            kept.compile(module, image, path);
        }
    } else if !in_place {
        kept.copy_sections(module, image);
    }
    kept
}

impl SectionMemory {
    /// Gives `module`, which refers to this memory, a table that did not exist when it was loaded, unless a handler has done so.
    pub(crate) fn late_table(&self, module: &mut Module<'static>) -> Option<SectionMemory> {
        let late = self.late.as_ref().filter(|late| late.table.get().is_none())?;
        let _active = Active::enter()?;
        let table = Some(late.file.use_for(module)?);
        module.late = None;
        Some(SectionMemory { table, ..SectionMemory::default() })
    }

    /// Uses the table in `file`, or lets handlers look for it later.
    fn use_table(&mut self, module: &mut Module<'static>, file: TableFile) {
        self.table = file.use_for(module);
        if self.table.is_none() {
            let late = self.late.insert(Late::new(file));
            // SAFETY: it is kept next to the module.
            module.late = Some(unsafe { &*core::ptr::from_ref(&late.table) });
        }
    }

    fn copy(&mut self, bytes: &[u8]) -> &[u8] {
        self.copies.push(bytes.into());
        self.copies.last().map_or(&[], |copy| copy)
    }

    /// Copies `.eh_frame_hdr` and `.eh_frame`.
    fn copy_sections(&mut self, module: &mut Module<'static>, image: &ElfImage<'_>) {
        // SAFETY: the copies are owned by the object and live as long as the module.
        unsafe {
            module.eh_frame_hdr =
                image.eh_frame_hdr.map(|section| extend(self.copy(section.bytes), section.address));
            module.eh_frame =
                image.trimmed_eh_frame().map(|section| extend(self.copy(section.bytes), section.address));
        }
    }

    /// Compiles a table from the file's sections, for an object without a search table.
    fn compile(&mut self, module: &mut Module<'static>, image: &ElfImage<'_>, path: &[u8]) {
        let Some(mapping) = Mapping::of_object(path) else { return };
        let Ok(file) = ElfFile::parse(mapping.bytes()) else { return };
        // The file may have been replaced since it was loaded.
        if file.build_id != image.build_id {
            return;
        }
        let eh_frame = file.eh_frame.map(|section| {
            let address = section.address.wrapping_add(image.bias);
            Section { bytes: section.bytes, address }
        });
        let of_go = file.go_table.and_then(GoTable::parse);
        let of_go = of_go.and_then(|table| go_frame::write(&table, image.bias));
        let more = of_go.or_else(|| Some(debug_frame::rewrite(file.debug_frame?.bytes, image.bias)));
        let (merged, section);
        match (more, eh_frame) {
            (Some(more), _) => {
                merged = debug_frame::merge(more, eh_frame);
                section = Section { bytes: &merged.0, address: merged.1 };
            }
            (None, Some(eh_frame)) => section = eh_frame,
            (None, None) => return,
        }
        // SAFETY: the copy is owned by the object and lives as long as the module.
        module.eh_frame = Some(unsafe { extend(self.copy(section.bytes), section.address) });
        if module.table.is_none()
            && let Ok(table) = compile(section, image.bias, image.build_id.unwrap_or(&[]))
        {
            // SAFETY: the copy is owned by the object and lives as long as the module.
            module.table = unsafe { extend_table(self.copy(&table)) };
        }
    }
}

/// The bytes of a section, for the walker.
///
/// # Safety
/// The bytes must live as long as every module that refers to them.
unsafe fn extend(bytes: &[u8], address: u64) -> Section<'static> {
    // SAFETY: the caller promises that the bytes live long enough.
    Section { bytes: unsafe { &*core::ptr::from_ref(bytes) }, address }
}

/// A table written by this user or root, whose bytes must live as long as every module that refers to it.
///
/// # Safety
/// As for [`extend`].
unsafe fn extend_table(bytes: &[u8]) -> Option<Table<'static>> {
    // SAFETY: the caller promises that the bytes live long enough.
    Table::from_trusted_bytes(unsafe { &*core::ptr::from_ref(bytes) }).ok()
}
