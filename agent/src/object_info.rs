//! What the loader tells of one object, and the variables and functions of the C library by which it does.

use core::ffi::{CStr, c_char};

use unwind::elf_image::ProgramHeader;

/// What `dl_iterate_phdr` tells of one object, up to the counters (which musl and old C libraries may lack).
#[repr(C)]
pub(crate) struct ObjectInfo {
    pub(crate) bias: u64,
    name: *const c_char,
    headers: *const ProgramHeader,
    header_count: u16,
    /// Objects ever loaded. Only if the size passed along reaches so far.
    adds: u64,
    /// Objects ever unloaded.
    subs: u64,
}

impl ObjectInfo {
    /// An object that `dl_iterate_phdr` does not tell of; how often it changed is not known.
    pub(crate) fn new(bias: u64, name: &CStr, headers: &[ProgramHeader]) -> ObjectInfo {
        ObjectInfo {
            bias,
            name: name.as_ptr(),
            headers: headers.as_ptr(),
            header_count: headers.len() as u16,
            adds: 0,
            subs: 0,
        }
    }

    /// The object's program headers.
    ///
    /// # Safety
    /// The object is loaded and stays so while the result is used; of one made by [`ObjectInfo::new`], the result is
    /// not used after the visit.
    pub(crate) unsafe fn program_headers(&self) -> &'static [ProgramHeader] {
        // SAFETY: the caller's promise; the loader gives address and count.
        unsafe { core::slice::from_raw_parts(self.headers, self.header_count.into()) }
    }

    /// The object's name as the loader has it; empty for the program itself.
    ///
    /// # Safety
    /// As for [`ObjectInfo::program_headers`].
    pub(crate) unsafe fn name(&self) -> &'static CStr {
        // SAFETY: the caller's promise; the loader's names are C strings.
        if self.name.is_null() { c"" } else { unsafe { CStr::from_ptr(self.name) } }
    }

    /// A number that grows with every load and unload.
    pub(crate) fn changes(&self) -> u64 {
        self.adds.wrapping_add(self.subs)
    }
}

/// The address of an import that may be absent, which is then 0.
macro_rules! weak_import {
    ($name:literal) => {{
        let address: usize;
        // SAFETY: loads the entry of the global offset table that the loader filled, or left 0.
        unsafe {
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("mov {}, [rip + ", $name, "@GOTPCREL]"),
                out(reg) address,
                options(nostack, readonly, preserves_flags),
            );
        }
        address
    }};
}
pub(crate) use weak_import;
