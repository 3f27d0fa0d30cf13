//! The loader's list of objects, as debuggers read it (`link.h`: `r_debug`, `link_map`).
//!
//! During the start it avoids functions that another library may have interposed. In an attached process it is the only
//! list available; there it is read without the loader's lock while other threads may change it, so the kernel copies
//! every word, and nothing can fault.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::arch::asm;
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use platform::sys::PAGE;

use crate::lock::Lock;
use crate::object_info::{ObjectInfo, weak_import};
use crate::{auxiliary, copied_image, kernel};

const PT_LOAD: u32 = 1;

/// The public part of the loader's record of an object, the same in glibc and musl.
#[repr(C)]
pub(crate) struct LinkMap {
    pub(crate) bias: u64,
    pub(crate) name: *const c_char,
    pub(crate) dynamic: *const [u64; 2],
    pub(crate) next: *const LinkMap,
}

/// The first fields of `struct r_debug`.
#[repr(C)]
pub(crate) struct DebuggerInterface {
    version: c_int,
    map: *const LinkMap,
    _breakpoint: usize,
    _state: c_int,
}

/// The loader is not changing its list.
const RT_CONSISTENT: c_int = 0;

static WITHOUT_LOADER: AtomicBool = AtomicBool::new(false);
static INTERFACE: AtomicPtr<DebuggerInterface> = AtomicPtr::new(core::ptr::null_mut());

/// Called when the library was injected; `interface` is the loader's, or null if the program has none.
pub(crate) fn set_without_loader(interface: *mut DebuggerInterface) {
    INTERFACE.store(interface, Ordering::Relaxed);
    WITHOUT_LOADER.store(true, Ordering::Relaxed);
}

/// Whether this library was injected instead of loaded.
pub(crate) fn is_without_loader() -> bool {
    WITHOUT_LOADER.load(Ordering::Relaxed)
}

/// The first object of the loader's list; null if there is no list. glibc exports the structure, musl a pointer to it.
pub(crate) fn first() -> *const LinkMap {
    let interface = if is_without_loader() {
        INTERFACE.load(Ordering::Relaxed).cast_const()
    } else {
        let glibc = weak_import!("_r_debug") as *const DebuggerInterface;
        let musl = weak_import!("_dl_debug_addr") as *const *const DebuggerInterface;
        // SAFETY: if the import exists, it is the loader's variable of this type.
        let musl = unsafe { musl.as_ref() }.copied().unwrap_or(core::ptr::null());
        if glibc.is_null() { musl } else { glibc }
    };
    // SAFETY: the loader's structure of this type, initialized before any constructor runs.
    unsafe { interface.as_ref() }.map_or(core::ptr::null(), |interface| interface.map)
}

/// False while the loader is changing its list.
pub(crate) fn is_idle() -> bool {
    Interface::read().is_none_or(|interface| interface.state == RT_CONSISTENT)
}

/// The needed fields of the loader's `struct r_debug`, copied.
struct Interface {
    map: u64,
    state: c_int,
}

impl Interface {
    /// Copies them; `None` if the program has no loader.
    fn read() -> Option<Interface> {
        let [_, map, _, state] = words(INTERFACE.load(Ordering::Relaxed) as u64)?;
        Some(Interface { map, state: state as c_int })
    }
}

/// Copies words from `address`; `None` if unreadable.
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

/// Copies the loader's list while it may be changing. Retries until two consecutive copies agree.
fn entries() -> Vec<Entry> {
    /// Number of attempts, and the time between them: the loader may take long, but not in constructors.
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
    /// More entries than any program has: a list that changes during the copy may be circular.
    const MOST: usize = 1 << 16;
    let mut entries = Vec::new();
    let mut next = Interface::read().map_or(0, |interface| interface.map);
    while let Some([bias, name, dynamic, after]) = words(next) {
        entries.push(Entry { bias, name, dynamic, next: after });
        next = if entries.len() < MOST { after } else { 0 };
    }
    entries
}

/// Held by whoever looks at objects in place. The hooked loader waits for it before it changes anything.
static STILL: Lock = Lock::new();

/// The loader's list while the loader does not change it, nor unload any of its objects.
#[cfg(feature = "allocations")]
pub(crate) struct StillList(Vec<Entry>);

/// Calls `body` while the loader waits. False if it is busy for too long. It must be hooked.
#[cfg(feature = "allocations")]
pub(crate) fn hold_still(body: impl FnOnce(&StillList)) -> bool {
    const ATTEMPTS: usize = 2000;
    const PAUSE_NS: u32 = 1_000_000;
    for _ in 0..ATTEMPTS {
        let held = STILL.hold();
        // It sets its state before it calls the hook, which waits for the lock.
        if is_idle() {
            body(&StillList(walk()));
            return true;
        }
        drop(held);
        kernel::sleep(PAUSE_NS);
    }
    false
}

/// Called in the hook before the loader changes anything.
pub(crate) fn wait_until_unobserved() {
    drop(STILL.hold());
}

#[cfg(feature = "allocations")]
impl StillList {
    /// Calls `visit` for the program and all objects of the list, until it returns false. They stay loaded during the call.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(&ObjectInfo) -> bool) {
        visit_listed(&self.0, visit);
    }
}

/// Calls `visit` for the program, all objects of the loader's list and the vDSO, until it returns false. All signals
/// must be blocked. The description is a copy; the object itself may be unmapped at any time.
pub(crate) fn visit_objects(visit: &mut dyn FnMut(&ObjectInfo) -> bool) {
    visit_listed(&entries(), visit);
    // The program runs code of it only where allocations are redirected.
    if cfg!(feature = "allocations")
        && let Some(headers) = copied_image::headers_at(own_start())
    {
        visit(&ObjectInfo::new(own_start(), OWN_NAME, &headers));
    }
}

/// The name of this library where no loader has loaded it.
pub(crate) const OWN_NAME: &CStr = c"[selfwind agent]";

/// Where this library begins in memory.
fn own_start() -> u64 {
    let start;
    // SAFETY: computes an address, that of the ELF header, which the linker provides.
    unsafe {
        asm!(
            ".hidden __ehdr_start",
            "lea {}, [rip + __ehdr_start]",
            out(reg) start,
            options(nostack, nomem, preserves_flags),
        );
    }
    start
}

fn visit_listed(entries: &[Entry], visit: &mut dyn FnMut(&ObjectInfo) -> bool) {
    let vdso = auxiliary::vdso();
    let mut vdso_seen = vdso == 0;
    if !visit_program(visit) {
        return;
    }
    // The first entry is the program.
    for entry in entries.iter().skip(1) {
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

/// Visits the program itself, which the kernel has mapped. Returns false to stop.
fn visit_program(visit: &mut dyn FnMut(&ObjectInfo) -> bool) -> bool {
    let (address, count) = auxiliary::program_headers();
    let Some(headers) = copied_image::headers(address, count as u16) else { return true };
    let Some(first) = headers.iter().find(|header| header.kind == PT_LOAD) else { return true };
    // The first segment begins with the file's first byte, the ELF header.
    let bias = (address & !(PAGE - 1)).wrapping_sub(first.address & !(PAGE - 1));
    visit(&ObjectInfo::new(bias, c"", &headers))
}
