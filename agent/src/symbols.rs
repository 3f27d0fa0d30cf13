//! Finds the real functions behind the interposed names.
//!
//! Like `dlsym(RTLD_NEXT)`, but without importing `dlsym`: visits the loaded objects in the loader's order and searches
//! their hash tables. The only symbols that this library imports are the weak ones below, so it can be loaded with any
//! C library, and without one.

use core::arch::asm;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::dynamic::Symbols;
use crate::link_map;
use crate::object_info::{ObjectInfo, weak_import};

type Callback = unsafe extern "C" fn(*const ObjectInfo, usize, *mut c_void) -> c_int;
type Iterate = unsafe extern "C" fn(Callback, *mut c_void) -> c_int;

/// The program's current environment array; null if there is none.
pub(crate) fn environment_now() -> *const *const c_char {
    let variable = weak_import!("environ") as *const *const *const c_char;
    // SAFETY: if the import exists, it is the C library's `char **environ`.
    if variable.is_null() { core::ptr::null() } else { unsafe { *variable } }
}

/// The program's environment, as name=value strings.
pub(crate) fn environment() -> impl Iterator<Item = &'static CStr> {
    let mut next = environment_now();
    core::iter::from_fn(move || {
        // SAFETY: `environ` is null or an array of strings that ends with null.
        unsafe {
            let entry = next.as_ref().copied().filter(|entry| !entry.is_null())?;
            next = next.add(1);
            Some(CStr::from_ptr(entry))
        }
    })
}

/// Calls `visit` for every loaded object in the loader's order, until it returns false. The loader's lock is held
/// meanwhile, so `visit` must not acquire a lock that any thread holds while it calls this.
pub(crate) fn visit_objects(visit: &mut dyn FnMut(&ObjectInfo) -> bool) {
    unsafe extern "C" fn each(info: *const ObjectInfo, _size: usize, data: *mut c_void) -> c_int {
        // SAFETY: `data` is the reference passed below; `info` is live during the call.
        unsafe {
            let visit = &mut *data.cast::<&mut dyn FnMut(&ObjectInfo) -> bool>();
            c_int::from(!visit(&*info))
        }
    }
    if link_map::is_without_loader() {
        return link_map::visit_objects(visit);
    }
    let address = weak_import!("dl_iterate_phdr");
    if address == 0 {
        return;
    }
    let mut visit = visit;
    // SAFETY: the import is the C library's function of this type.
    unsafe {
        let iterate = core::mem::transmute::<usize, Iterate>(address);
        iterate(each, (&raw mut visit).cast());
    }
}

/// A real function, looked up by name once and then cached.
pub(crate) struct Real {
    name: &'static CStr,
    address: AtomicUsize,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr) -> Real {
        Real { name, address: AtomicUsize::new(0) }
    }

    /// Its name.
    #[cfg(feature = "allocations")]
    pub(crate) fn name(&self) -> &'static CStr {
        self.name
    }

    /// The address; looked up now if it was not found before, since its library may have been loaded since.
    pub(crate) fn address(&self) -> Option<usize> {
        match self.address.load(Ordering::Relaxed) {
            0 => {
                resolve(&[self]);
                Some(self.address.load(Ordering::Relaxed)).filter(|address| *address != 0)
            }
            address => Some(address),
        }
    }

    /// The address, if it was found before. Takes no lock.
    pub(crate) fn known(&self) -> Option<usize> {
        Some(self.address.load(Ordering::Relaxed)).filter(|address| *address != 0)
    }
}

/// The vDSO's `clock_gettime`, if there is one.
pub(crate) fn vdso_clock() -> Option<platform::clock::ClockGettime> {
    let vdso = crate::auxiliary::vdso();
    let mut found = None;
    visit_objects(&mut |object| {
        // In an attached process no lock keeps other objects loaded, so they are not read.
        if link_map::is_without_loader() && object.bias != vdso {
            return true;
        }
        // SAFETY: the loader keeps the object loaded while it visits it; the vDSO is never unmapped.
        if let Some(symbols) = unsafe { Symbols::of_object(object) }
            && symbols.holds(vdso)
        {
            found = symbols.find(c"__vdso_clock_gettime", true);
        }
        found.is_none()
    });
    // SAFETY: the kernel's function of this type; the vDSO is never unmapped.
    found.map(|address| unsafe {
        core::mem::transmute::<usize, platform::clock::ClockGettime>(address as usize)
    })
}

/// Looks up `functions` in all objects after this library; then once more, accepting hidden versions.
///
/// Until the agent has started, the loader's own list is used: `dl_iterate_phdr` may be interposed by another preloaded
/// library (such as AddressSanitizer's), which calls `dlsym`, which is interposed here and would recurse. Nothing is
/// unloaded that early.
pub(crate) fn resolve(functions: &[&Real]) {
    let started = STARTED.load(Ordering::Relaxed);
    for allow_hidden in [false, true] {
        let mut search = Search { functions, allow_hidden, after_own: false };
        if started {
            visit_objects(&mut |object| {
                // SAFETY: the loader keeps the object loaded while it visits it.
                let symbols = unsafe { Symbols::of_object(object) };
                symbols.is_none_or(|symbols| search.look_into(&symbols, symbols.holds(own_address())))
            });
        } else {
            search.visit_link_maps();
        }
        if functions.iter().all(|function| function.known().is_some()) {
            return;
        }
    }
}

/// Looks up `functions` in the objects of a process into which this library was injected; then once more, accepting hidden
/// versions.
#[cfg(feature = "allocations")]
pub(crate) fn resolve_in(objects: &link_map::StillList, functions: &[&Real]) {
    for allow_hidden in [false, true] {
        let mut search = Search { functions, allow_hidden, after_own: true };
        objects.visit(&mut |object| {
            // SAFETY: the object stays loaded during the visit.
            let symbols = unsafe { Symbols::of_object(object) };
            symbols.is_none_or(|symbols| search.look_into(&symbols, false))
        });
    }
}

/// The function of this name that the program itself defines, which comes before that of any library.
#[cfg(feature = "allocations")]
pub(crate) fn in_program(name: &CStr) -> Option<u64> {
    // SAFETY: the first object of the list is the program, which is never unloaded; the loader gives its mapped dynamic section.
    unsafe {
        let program = link_map::first().as_ref().filter(|program| !program.dynamic.is_null())?;
        Symbols::of_dynamic(program.bias, program.dynamic, &[])?.find(name, true)
    }
}

/// Whether both functions were found, in one object. Only until the agent has started.
pub(crate) fn are_of_one_object(one: &Real, other: &Real) -> bool {
    let (Some(one), Some(other)) = (one.known(), other.known()) else { return false };
    // Objects do not overlap: that of an address is the one with the highest bias below it.
    let mut biases = [0; 2];
    let mut map = link_map::first();
    // SAFETY: before the start is over no object goes away; the list ends with null.
    while let Some(object) = unsafe { map.as_ref() } {
        map = object.next;
        for (bias, address) in biases.iter_mut().zip([one, other]) {
            if object.bias <= address as u64 {
                *bias = object.bias.max(*bias);
            }
        }
    }
    biases[0] == biases[1]
}

/// Called at the end of the start: objects found from now on may have been loaded later, and may be unloaded.
pub(crate) fn started() {
    STARTED.store(true, Ordering::Relaxed);
}

static STARTED: AtomicBool = AtomicBool::new(false);

/// An address in this library.
fn own_address() -> u64 {
    resolve as fn(&[&Real]) as usize as u64
}

/// The name under which the loader has loaded this library.
pub(crate) fn own_name() -> Option<&'static [u8]> {
    let own = own_dynamic();
    let mut map = link_map::first();
    // SAFETY: called before the end of the start; this library is never unloaded, nor is its name freed.
    while let Some(object) = unsafe { map.as_ref() } {
        map = object.next;
        if core::ptr::eq(object.dynamic, own) && !object.name.is_null() {
            // SAFETY: the loader's string.
            return Some(unsafe { CStr::from_ptr(object.name) }.to_bytes());
        }
    }
    None
}

/// Whether this library interposes the function `name`: the recorder withdraws the names that a recording does not need.
pub(crate) fn interposes(name: &CStr) -> bool {
    let own = own_dynamic();
    let mut map = link_map::first();
    // SAFETY: this library is never unloaded, and called before the end of the start, when nothing else is.
    while let Some(object) = unsafe { map.as_ref() } {
        map = object.next;
        if core::ptr::eq(object.dynamic, own) {
            // SAFETY: the loader gives the mapped dynamic section of this library.
            let symbols = unsafe { Symbols::of_dynamic(object.bias, object.dynamic, &[]) };
            return symbols.is_some_and(|symbols| symbols.find(name, true).is_some());
        }
    }
    false
}

/// This library's own dynamic section.
fn own_dynamic() -> *const [u64; 2] {
    let own;
    // SAFETY: computes an address.
    unsafe {
        asm!("lea {}, [rip + _DYNAMIC]", out(reg) own, options(nostack, nomem, preserves_flags));
    }
    own
}

/// One pass over the objects, in the loader's order.
struct Search<'a> {
    functions: &'a [&'a Real],
    allow_hidden: bool,
    after_own: bool,
}

impl Search<'_> {
    /// Stores the functions that `symbols` defines, if its object comes after this library. Returns whether to continue.
    fn look_into(&mut self, symbols: &Symbols, is_own: bool) -> bool {
        if is_own {
            self.after_own = true;
            return true;
        }
        if self.after_own {
            for function in self.functions.iter().filter(|function| function.known().is_none()) {
                if let Some(address) = symbols.find(function.name, self.allow_hidden) {
                    function.address.store(address as usize, Ordering::Relaxed);
                }
            }
        }
        self.functions.iter().any(|function| function.known().is_none())
    }

    fn visit_link_maps(&mut self) {
        let own = own_dynamic();
        let mut map = link_map::first();
        // SAFETY: before the start is over no object goes away; the list ends with null.
        while let Some(object) = unsafe { map.as_ref() } {
            map = object.next;
            if object.dynamic.is_null() {
                continue;
            }
            // SAFETY: no object goes away before the start is over, and the loader gives the mapped dynamic section.
            let symbols = unsafe { Symbols::of_dynamic(object.bias, object.dynamic, &[]) };
            if let Some(symbols) = symbols
                && !self.look_into(&symbols, core::ptr::eq(object.dynamic, own))
            {
                return;
            }
        }
    }
}
