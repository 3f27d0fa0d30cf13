//! The loader's description of an object, and weak imports of the C library.

use core::ffi::{CStr, c_char};

use interpreter::python::ThreadLocals;
use unwind::elf_image::ProgramHeader;

/// The result of `dl_iterate_phdr` for an object, up to the counters (which musl and old C libraries may lack).
#[repr(C)]
pub(crate) struct ObjectInfo {
    pub(crate) bias: u64,
    name: *const c_char,
    headers: *const ProgramHeader,
    header_count: u16,
    /// Number of objects ever loaded. Present only if the passed size says so.
    adds: u64,
    /// Number of objects ever unloaded.
    subs: u64,
    _tls_module: usize,
    /// Address of the calling thread's block of the object's thread-local storage; 0 if it has none yet.
    tls_block: u64,
}

impl ObjectInfo {
    /// An object not reported by `dl_iterate_phdr`; its change count is unknown.
    pub(crate) fn new(bias: u64, name: &CStr, headers: &[ProgramHeader]) -> ObjectInfo {
        ObjectInfo {
            bias,
            name: name.as_ptr(),
            headers: headers.as_ptr(),
            header_count: headers.len() as u16,
            adds: 0,
            subs: 0,
            _tls_module: 0,
            tls_block: 0,
        }
    }

    /// The object's program headers.
    ///
    /// # Safety
    /// The object must stay loaded while the result is used; if made by [`ObjectInfo::new`], the result must not be
    /// used after the visit.
    pub(crate) unsafe fn program_headers(&self) -> &'static [ProgramHeader] {
        // SAFETY: the caller promises that the object stays loaded; the loader gives address and count.
        unsafe { core::slice::from_raw_parts(self.headers, self.header_count.into()) }
    }

    /// The loader's name of the object; empty for the program itself.
    ///
    /// # Safety
    /// As for [`ObjectInfo::program_headers`].
    pub(crate) unsafe fn name(&self) -> &'static CStr {
        // SAFETY: the caller promises that the object stays loaded; the loader's names are C strings.
        if self.name.is_null() { c"" } else { unsafe { CStr::from_ptr(self.name) } }
    }

    /// Where every thread has the object's thread-local variables. Empty if that differs from thread to thread or is not known.
    pub(crate) fn thread_locals(&self, is_program: bool, headers: &[ProgramHeader]) -> ThreadLocals {
        const PT_TLS: u32 = 7;
        let Some(header) = headers.iter().find(|header| header.kind == PT_TLS) else {
            return ThreadLocals::default();
        };
        match self.tls_block {
            0 if is_program => ThreadLocals::of_program(header.memory_size, header.alignment),
            0 => ThreadLocals::default(),
            block => ThreadLocals::at(block, header.memory_size),
        }
    }

    /// A number that increases with every load and unload.
    pub(crate) fn changes(&self) -> u64 {
        self.adds.wrapping_add(self.subs)
    }
}

/// The address of a weak import; 0 if it is absent.
macro_rules! weak_import {
    ($name:literal) => {{
        let address: usize;
        // SAFETY: loads the entry of the global offset table, which the loader has filled or left 0.
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
