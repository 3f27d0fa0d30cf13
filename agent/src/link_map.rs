//! The loader's own list of objects, as debuggers read it (`link.h`: `r_debug`, `link_map`).
//!
//! Before the start is over it spares us functions that may be somebody else's. And where the agent was put into a
//! running process without the loader's help, it is the only list there is: then it is read while other threads may
//! change it, without the loader's lock. So the kernel copies every word of it, and nothing faults.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use handler::sys::PAGE;

use crate::object_info::{ObjectInfo, weak_import};
use crate::{auxiliary, copied_image, kernel};

const PT_LOAD: u32 = 1;

/// The public head of the loader's record of one object, the same in glibc and musl.
#[repr(C)]
pub(crate) struct LinkMap {
    pub(crate) bias: u64,
    pub(crate) name: *const c_char,
    pub(crate) dynamic: *const [u64; 2],
    pub(crate) next: *const LinkMap,
}

/// The head of `struct r_debug`.
#[repr(C)]
pub(crate) struct DebuggerInterface {
    version: c_int,
    map: *const LinkMap,
    _breakpoint: usize,
    _state: c_int,
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

/// True unless the loader is in the middle of changing its list.
pub(crate) fn is_idle() -> bool {
    Interface::read().is_none_or(|interface| interface.state == RT_CONSISTENT)
}

/// What is wanted of the loader's `struct r_debug`, as it is now.
struct Interface {
    map: u64,
    state: c_int,
}

impl Interface {
    /// None if the program has no loader.
    fn read() -> Option<Interface> {
        let [_, map, _, state] = words(INTERFACE.load(Ordering::Relaxed) as u64)?;
        Some(Interface { map, state: state as c_int })
    }
}

/// The words at `address`, if there is memory.
fn words<const N: usize>(address: u64) -> Option<[u64; N]> {
    let mut words = [[0u8; 8]; N];
    (address != 0 && kernel::copy_own(address, words.as_flattened_mut()))
        .then_some(words.map(u64::from_le_bytes))
}

/// An entry of the loader's list.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry {
    bias: u64,
    name: u64,
    dynamic: u64,
    next: u64,
}

/// The loader's list, copied while it may be changing; two looks in a row found the same, if that could be had.
fn entries() -> Vec<Entry> {
    /// Looks, and the time between them: the loader may be at work for long, in constructors it is not.
    const LOOKS: usize = 1000;
    const PAUSE_NS: u32 = 1_000_000;
    let mut before = Vec::new();
    for look in 0..LOOKS {
        let entries = walk();
        if is_idle() && entries == before && look > 0 {
            break;
        }
        if look > 0 {
            kernel::sleep(PAUSE_NS);
        }
        before = entries;
    }
    before
}

fn walk() -> Vec<Entry> {
    /// More than any program has; a list that changes under the walk may run in a circle.
    const MOST: usize = 1 << 16;
    let mut entries = Vec::new();
    let mut next = Interface::read().map_or(0, |interface| interface.map);
    while let Some([bias, name, dynamic, after]) = words(next) {
        entries.push(Entry { bias, name, dynamic, next: after });
        next = if entries.len() < MOST { after } else { 0 };
    }
    entries
}

/// Calls `visit` for the program, every object of the loader's list and the vDSO, until it returns false. All signals
/// are blocked. What is passed to `visit` is copied, but what it tells of may be unmapped at any time.
pub(crate) fn visit_objects(visit: &mut dyn FnMut(&ObjectInfo) -> bool) {
    let vdso = auxiliary::vdso();
    let mut vdso_seen = vdso == 0;
    if !visit_program(visit) {
        return;
    }
    // The first is the program.
    for entry in entries().iter().skip(1) {
        vdso_seen |= entry.bias == vdso;
        let name =
            copied_image::string(entry.name).and_then(|name| CString::new(name).ok()).unwrap_or_default();
        if let Some(headers) = copied_image::headers_at(entry.bias)
            && !visit(&ObjectInfo::new(entry.bias, &name, &headers))
        {
            return;
        }
    }
    if !vdso_seen && let Some(headers) = copied_image::headers_at(vdso) {
        visit(&ObjectInfo::new(vdso, c"", &headers));
    }
}

/// The program itself, which the kernel has mapped; false to go no further.
fn visit_program(visit: &mut dyn FnMut(&ObjectInfo) -> bool) -> bool {
    let (address, count) = auxiliary::program_headers();
    let Some(headers) = copied_image::headers(address, count as u16) else { return true };
    let Some(first) = headers.iter().find(|header| header.kind == PT_LOAD) else { return true };
    // The first segment begins with the file, which begins with the ELF header.
    let bias = (address & !(PAGE - 1)).wrapping_sub(first.address & !(PAGE - 1));
    visit(&ObjectInfo::new(bias, c"", &headers))
}
