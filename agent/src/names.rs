//! Names objects, and looks for interpreters in them: what the loader does not provide.

use alloc::vec::Vec;

use interpreter::python::ThreadLocals;
use unwind::elf_image::ElfImage;

use crate::dynamic::Symbols;
use crate::link_map::OWN_NAME;
use crate::mapped_files;
use crate::object_info::ObjectInfo;
use crate::python;

/// What is needed to complete the names that the loader gives.
#[derive(Clone)]
pub(crate) struct Names {
    /// Path of the program's file.
    pub(crate) program: Vec<u8>,
    /// Directory that relative names are resolved against.
    pub(crate) directory: Vec<u8>,
    /// Directory of table files, if any.
    pub(crate) tables: Option<Vec<u8>>,
    /// Do not look for interpreters.
    pub(crate) native_only: bool,
}

impl Names {
    /// The path of the object at `start` that the loader calls `name`.
    pub(crate) fn path_of(&self, name: &[u8], start: u64, is_program: bool, is_vdso: bool) -> Vec<u8> {
        if is_vdso {
            return b"[vdso]".to_vec();
        }
        if name == OWN_NAME.to_bytes() {
            return name.to_vec();
        }
        if is_program || name.is_empty() {
            return self.program.clone();
        }
        if name.first() == Some(&b'/') {
            // Loaded through a descriptor, which means another file in another process and at another time.
            let through = name.starts_with(b"/proc/").then(|| mapped_files::path_at(start));
            return through.flatten().unwrap_or_else(|| name.to_vec());
        }
        [self.directory.as_slice(), b"/", name.strip_prefix(b"./").unwrap_or(name)].concat()
    }

    /// The interpreter in an object, unless interpreters are ignored.
    ///
    /// # Safety
    /// The object must stay loaded during the call.
    pub(crate) unsafe fn interpreter_by(
        &self,
        symbols: &Symbols,
        image: &ElfImage<'_>,
        thread_locals: ThreadLocals,
    ) -> Option<python::Found> {
        // SAFETY: the caller promises that the object stays loaded.
        if self.native_only { None } else { unsafe { python::recognise(symbols, image, thread_locals) } }
    }

    /// The interpreter in an object whose name suggests one; nothing of other objects is read.
    ///
    /// # Safety
    /// The object must stay loaded during the call if it is the program or a `libpython`.
    pub(crate) unsafe fn interpreter(
        &self,
        is_program: bool,
        path: &[u8],
        info: &ObjectInfo,
        image: &ElfImage<'_>,
        thread_locals: ThreadLocals,
    ) -> Option<python::Found> {
        let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        if !is_program && !file.starts_with(b"libpython") {
            return None;
        }
        // SAFETY: the name says program or `libpython`, and the caller promises that these stay loaded.
        unsafe { self.interpreter_by(&Symbols::of_object(info)?, image, thread_locals) }
    }
}
