//! The loaded modules as the loader reports them; every method that keeps its own list is built from this one.

use std::ffi::{c_int, c_void};
use unwind::elf_image::{ElfImage, ProgramHeader};

/// All loaded modules, in load order.
pub(crate) fn images() -> Vec<ElfImage<'static>> {
    let mut images: Vec<ElfImage<'static>> = Vec::new();
    // SAFETY: the callback has the right type and the data outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(note), std::ptr::from_mut(&mut images).cast()) };
    images
}

unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid info and our own pointer; `Elf64_Phdr` and `ProgramHeader` are one layout; the
    // bench unloads nothing, so the module stays mapped as its headers say.
    unsafe {
        let headers: &[ProgramHeader] =
            std::slice::from_raw_parts((*info).dlpi_phdr.cast(), (*info).dlpi_phnum.into());
        (*data.cast::<Vec<ElfImage<'static>>>()).extend(ElfImage::from_headers((*info).dlpi_addr, headers));
    }
    0
}
