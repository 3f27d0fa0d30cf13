//! What an object is called, and whether an interpreter is to be looked for in it: what the loader does not say.

use alloc::vec::Vec;

use unwind::elf_image::ElfImage;

use crate::dynamic::Symbols;
use crate::object_info::ObjectInfo;
use crate::python;

/// What the loader does not say of an object's name.
#[derive(Clone)]
pub(crate) struct Names {
    /// The program's own file.
    pub(crate) program: Vec<u8>,
    /// The directory that relative names start from.
    pub(crate) directory: Vec<u8>,
    /// Directory of table files, if any.
    pub(crate) tables: Option<Vec<u8>>,
    /// Interpreters are not looked for.
    pub(crate) native_only: bool,
}

impl Names {
    /// The path of the object that the loader calls `name`.
    pub(crate) fn path_of(&self, name: &[u8], is_program: bool, is_vdso: bool) -> Vec<u8> {
        if is_vdso {
            return b"[vdso]".to_vec();
        }
        if is_program || name.is_empty() {
            return self.program.clone();
        }
        if name.first() == Some(&b'/') {
            return name.to_vec();
        }
        [self.directory.as_slice(), b"/", name.strip_prefix(b"./").unwrap_or(name)].concat()
    }

    /// The interpreter in an object, if it is looked for.
    ///
    /// # Safety
    /// The object is loaded and stays so meanwhile.
    pub(crate) unsafe fn interpreter_by(
        &self,
        symbols: &Symbols,
        image: &ElfImage<'_>,
    ) -> Option<python::Found> {
        // SAFETY: the caller's promise.
        if self.native_only { None } else { unsafe { python::recognise(symbols, image) } }
    }

    /// The interpreter in an object, if it may have one by its name: of others nothing is read.
    ///
    /// # Safety
    /// As above, if the object is the program or a `libpython`.
    pub(crate) unsafe fn interpreter(
        &self,
        is_program: bool,
        path: &[u8],
        info: &ObjectInfo,
        image: &ElfImage<'_>,
    ) -> Option<python::Found> {
        let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        if !is_program && !file.starts_with(b"libpython") {
            return None;
        }
        // SAFETY: the caller's promise.
        unsafe { self.interpreter_by(&Symbols::of_object(info)?, image) }
    }
}
