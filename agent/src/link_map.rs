//! The loader's own list of objects, as debuggers read it (`link.h`: `r_debug`, `link_map`).
//!
//! Before the start is over it spares us functions that may be somebody else's. And where the agent was put into a
//! running process without the loader's help, it is the only list there is: then every other thread stands still while
//! it is read, and the recorder has seen that the loader is not in the middle of changing it.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use handler::sys;
use unwind::elf_image::ProgramHeader;

use crate::auxiliary;
use crate::symbols::{ObjectInfo, weak_import};

const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
const PT_LOAD: u32 = 1;
/// Bytes of `Elf64_Ehdr`, which linkers put the program headers right behind.
const EHDR_SIZE: u64 = 64;
const PAGE: u64 = 4096;

/// The public head of the loader's record of one object, the same in glibc and musl.
#[repr(C)]
pub(crate) struct LinkMap {
    pub(crate) bias: u64,
    name: *const c_char,
    pub(crate) dynamic: *const [u64; 2],
    pub(crate) next: *const LinkMap,
}

/// The head of `struct r_debug`.
#[repr(C)]
pub(crate) struct DebuggerInterface {
    version: c_int,
    map: *const LinkMap,
    breakpoint: usize,
    state: c_int,
}

/// The loader is not at work.
const RT_CONSISTENT: c_int = 0;

static WITHOUT_LOADER: AtomicBool = AtomicBool::new(false);
static INTERFACE: AtomicPtr<DebuggerInterface> = AtomicPtr::new(core::ptr::null_mut());

/// The library was not loaded but put here; `interface` is the loader's, or null if the program has none.
pub(crate) fn set_without_loader(interface: *mut DebuggerInterface) {
    INTERFACE.store(interface, Ordering::Relaxed);
    WITHOUT_LOADER.store(true, Ordering::Relaxed);
}

/// True if no loader has placed this library.
pub(crate) fn is_without_loader() -> bool {
    WITHOUT_LOADER.load(Ordering::Relaxed)
}

/// The loader's first object, or null if it shows none. glibc has the structure itself, musl a pointer to it.
pub(crate) fn first() -> *const LinkMap {
    let interface = if is_without_loader() {
        INTERFACE.load(Ordering::Relaxed).cast_const()
    } else {
        let glibc = weak_import!("_r_debug") as *const DebuggerInterface;
        let musl = weak_import!("_dl_debug_addr") as *const *const DebuggerInterface;
        // SAFETY: if the import is there it is the loader's variable of this type.
        let musl = unsafe { musl.as_ref() }.copied().unwrap_or(core::ptr::null());
        if glibc.is_null() { musl } else { glibc }
    };
    // SAFETY: the loader's structure of this shape, filled before any constructor runs.
    unsafe { interface.as_ref() }.map_or(core::ptr::null(), |interface| interface.map)
}

/// Should the recorder be killed now, other threads run again and may unload what is about to be read. The loader says
/// so before it unmaps anything.
fn is_idle() -> bool {
    // SAFETY: the loader's own variable, which stays.
    unsafe { INTERFACE.load(Ordering::Relaxed).as_ref() }.is_none_or(|interface| {
        // SAFETY: as above; another thread may write it.
        (unsafe { (&raw const interface.state).read_volatile() }) == RT_CONSISTENT
    })
}

/// Calls `visit` for the program, every object of the loader's list and the vDSO, until it returns false. All signals
/// are blocked, and nobody changes the list meanwhile.
pub(crate) fn visit_objects(visit: &mut dyn FnMut(&ObjectInfo) -> bool) {
    let mut map = first();
    let vdso = auxiliary::vdso();
    let mut vdso_seen = vdso == 0;
    if !visit_program(visit) {
        return;
    }
    // SAFETY: the list is whole and ends with null.
    if let Some(program) = unsafe { map.as_ref() } {
        map = program.next;
    }
    // SAFETY: as above.
    while let Some(object) = unsafe { map.as_ref() }.filter(|_| is_idle()) {
        map = object.next;
        vdso_seen |= object.bias == vdso;
        // SAFETY: the loader's names are C strings.
        let name = if object.name.is_null() { c"" } else { unsafe { CStr::from_ptr(object.name) } };
        if let Some(headers) = headers_at(object.bias)
            && !visit(&ObjectInfo::new(object.bias, name, headers))
        {
            return;
        }
    }
    if !vdso_seen && let Some(headers) = headers_at(vdso) {
        visit(&ObjectInfo::new(vdso, c"", headers));
    }
}

/// The program itself, which the kernel has mapped; false to go no further.
fn visit_program(visit: &mut dyn FnMut(&ObjectInfo) -> bool) -> bool {
    let (address, count) = auxiliary::program_headers();
    if address == 0 || count == 0 {
        return true;
    }
    // SAFETY: the kernel says that the program's headers are mapped there; a program is never unmapped.
    let headers = unsafe { core::slice::from_raw_parts(address as *const ProgramHeader, count as usize) };
    let Some(first) = headers.iter().find(|header| header.kind == PT_LOAD) else { return true };
    // The first segment begins with the file, which begins with the ELF header.
    let bias = (address & !(PAGE - 1)).wrapping_sub(first.address & !(PAGE - 1));
    visit(&ObjectInfo::new(bias, c"", headers))
}

/// The program headers of the object that lies at `start` from its first byte on.
fn headers_at(start: u64) -> Option<&'static [ProgramHeader]> {
    // An object linked to another address than 0 does not begin at its bias; then there may be nothing at all.
    if start == 0 || !sys::is_readable(start) || !sys::is_readable(start + EHDR_SIZE - 8) {
        return None;
    }
    // SAFETY: the whole ELF header has just been seen to be readable.
    let (magic, offset, count) = unsafe {
        (
            (start as *const [u8; 4]).read(),
            ((start + 32) as *const u64).read(),
            ((start + 56) as *const u16).read(),
        )
    };
    let bytes = u64::from(count) * size_of::<ProgramHeader>() as u64;
    if magic != ELF_MAGIC || offset % 8 != 0 || offset + bytes > PAGE {
        return None;
    }
    // SAFETY: in the same page as the ELF header, which is mapped.
    Some(unsafe { core::slice::from_raw_parts((start + offset) as *const ProgramHeader, count.into()) })
}
