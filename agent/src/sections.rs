//! Where the walker finds an object's unwind information: in place, in a private copy, in a table file, or in a
//! table compiled now.

use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ptr::NonNull;

use unwind::Module;
use unwind::elf_file::ElfFile;
use unwind::elf_image::ElfImage;

use crate::activity::Active;
use crate::kernel::{self, File};
use crate::modules::{extend, extend_table};

/// Largest file that is mapped to look for sections.
const LARGEST_FILE: u64 = 4 << 30;

/// Memory that a module refers to.
#[derive(Default)]
pub(crate) struct Kept {
    copies: Vec<Box<[u8]>>,
    table: Option<Mapping>,
}

/// A read-only mapping of a whole file.
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is read-only and belongs to this value alone.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whoever held this value is done with it.
        unsafe { kernel::unmap(self.base.as_ptr(), self.bytes) };
    }
}

impl Mapping {
    /// Maps the file at `path`, if `accept` likes its status.
    fn of(path: &[u8], accept: impl Fn(&kernel::Status) -> bool) -> Option<Mapping> {
        let path = CString::new(path).ok()?;
        let file = File::read_only(&path).ok()?;
        let status = file.status().ok()?;
        if status.size == 0 || status.size > LARGEST_FILE || !accept(&status) {
            return None;
        }
        let bytes = status.size as usize;
        let base = file.map(bytes, libc::PROT_READ, libc::MAP_PRIVATE).ok()?;
        Some(Mapping { base, bytes })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: a readable mapping of this length. A file that shrinks meanwhile faults; table files are the
        // user's own, and objects that are loaded are mapped by the loader in the same way.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.bytes) }
    }
}

/// Completes `module`'s unwind information and keeps the memory it needs.
pub(crate) fn keep(
    module: &mut Module<'static>,
    image: &ElfImage<'static>,
    path: &[u8],
    in_place: bool,
    tables: Option<&[u8]>,
) -> Kept {
    let mut kept = Kept::default();
    // No file is opened once the program filters its calls.
    let active = Active::enter();
    let may_open = active.is_some();
    if let (Some(directory), Some(build_id), true) = (tables, image.build_id, may_open) {
        kept.use_table_file(module, directory, build_id);
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

impl Kept {
    fn copy(&mut self, bytes: &[u8]) -> &[u8] {
        self.copies.push(bytes.into());
        self.copies.last().map_or(&[], |copy| copy)
    }

    /// Copies `.eh_frame_hdr` and `.eh_frame`.
    fn copy_sections(&mut self, module: &mut Module<'static>, image: &ElfImage<'static>) {
        // SAFETY: the copies live in the object, as long as the module.
        unsafe {
            module.eh_frame_hdr =
                image.eh_frame_hdr.map(|section| extend(self.copy(section.bytes), section.address));
            module.eh_frame =
                image.trimmed_eh_frame().map(|section| extend(self.copy(section.bytes), section.address));
        }
    }

    /// Uses the table file of `build_id`, if there is one, made by this user or root, for this build-id.
    fn use_table_file(&mut self, module: &mut Module<'static>, directory: &[u8], build_id: &[u8]) {
        const WRITABLE_BY_OTHERS: u32 = 0o022;
        let mut path = directory.to_vec();
        path.push(b'/');
        for byte in build_id {
            path.extend([byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
        }
        path.extend_from_slice(b".table");
        let user = kernel::user_id();
        let trusted = |status: &kernel::Status| {
            (status.owner == user || status.owner == 0) && status.mode & WRITABLE_BY_OTHERS == 0
        };
        let Some(mapping) = Mapping::of(&path, trusted) else { return };
        // SAFETY: the mapping is kept beside the module.
        let table = unsafe { extend_table(mapping.bytes()) };
        if let Some(table) = table.filter(|table| table.build_id() == build_id) {
            module.table = Some(table);
            self.table = Some(mapping);
        }
    }

    /// Compiles a table from the file's `.eh_frame`, for an object without the sorted search table.
    fn compile(&mut self, module: &mut Module<'static>, image: &ElfImage<'static>, path: &[u8]) {
        let Some(mapping) = Mapping::of(path, |_| true) else { return };
        let Ok(file) = ElfFile::parse(mapping.bytes()) else { return };
        // The file may have been replaced since it was loaded.
        if file.build_id != image.build_id {
            return;
        }
        let Some(section) = file.eh_frame else { return };
        let address = section.address.wrapping_add(image.bias);
        // SAFETY: the copy lives in the object, as long as the module.
        module.eh_frame = Some(unsafe { extend(self.copy(section.bytes), address) });
        if module.table.is_none()
            && let Ok(table) = unwind::compile::compile(section, 0, image.build_id.unwrap_or(&[]))
        {
            // SAFETY: as above.
            module.table = unsafe { extend_table(self.copy(&table)) };
        }
    }
}
