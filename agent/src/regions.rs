//! Registration of unwinders for regions of code, by programs and plug-ins: everything is checked before handlers see
//! it.
//!
//! Regions are published with the modules, whose snapshots also tell when one is no longer in use. A plug-in's
//! constructor may run before the agent has started, so nothing here may depend on that. Under a seccomp filter nothing
//! is done.

use core::ffi::{CStr, c_char, c_int};

use handler::recording;
use interpreter::regions::{LANGUAGE, Region, Unwinder, VERSION, names};
use platform::activity::Active;

use crate::dynamic::Symbols;
use crate::journal;
use crate::kernel;
use crate::lock::Masked;
use crate::modules;
use crate::symbols;

/// Maximum number of regions; each change copies all of them.
const MOST: usize = 1024;
/// Log space in bytes for names that handlers append: some 10,000 functions.
const LOG: u64 = 1 << 20;
/// How long to wait for handlers that are inside a removed unwinder.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Opens the log for the function descriptions that handlers will append.
pub(crate) fn make_room(recording: &recording::Recording) {
    if modules::regions() > 0 {
        journal::open_log(recording, LOG);
    }
}

/// Registers the unwinder at `given` for code in [start, end). Returns the region's number or a negative errno.
///
/// # Safety
/// `given` must be null or an unwinder of the size that it states, with a language that is null or a string.
pub(crate) unsafe fn add(given: *const Unwinder, start: u64, end: u64) -> c_int {
    let Some(_active) = Active::enter() else { return -libc::EPERM };
    // SAFETY: the caller promises null or a valid unwinder.
    let Some(region) = (unsafe { checked(given, start, end) }) else { return -libc::EINVAL };
    if modules::regions() >= MOST {
        return -libc::ENOSPC;
    }
    if !prepare() {
        return -libc::ENOMEM;
    }
    let Some(id) = modules::add_region(region) else { return -libc::EEXIST };
    if let Some(recording) = recording::current() {
        let _masked = Masked::new();
        make_room(recording);
    }
    id as c_int
}

/// Like [`add`], for the function that a loaded object exports as `symbol`.
///
/// # Safety
/// As for [`add`]; `symbol` must be null or a string.
pub(crate) unsafe fn add_symbol(given: *const Unwinder, symbol: *const c_char) -> c_int {
    if symbol.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: not null (checked above), so the caller promises a string.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    let mut found = None;
    symbols::visit_objects(&mut |object| {
        // SAFETY: the loader keeps the object loaded while it visits it.
        let symbols = unsafe { Symbols::of_object(object) };
        found =
            symbols.and_then(|symbols| symbols.find_with_size(symbol, true)).filter(|(_, bytes)| *bytes > 0);
        found.is_none()
    });
    match found {
        // SAFETY: the caller promises null or a valid unwinder.
        Some((start, bytes)) => unsafe { add(given, start, start.saturating_add(bytes)) },
        None => -libc::ENOENT,
    }
}

/// Removes a region. Returns 0 once no handler uses it any more, else a negative errno.
pub(crate) fn remove(id: c_int) -> c_int {
    let Some(_active) = Active::enter() else { return -libc::EPERM };
    let Ok(id) = u32::try_from(id) else { return -libc::ENOENT };
    if !modules::remove_region(id) {
        return -libc::ENOENT;
    }
    if !modules::is_region_in_use(id) {
        return 0;
    }
    let begun = kernel::clock_ns(libc::CLOCK_MONOTONIC);
    while kernel::clock_ns(libc::CLOCK_MONOTONIC) - begun < PATIENCE_NS {
        kernel::yield_now();
        if !modules::is_region_in_use(id) {
            return 0;
        }
    }
    -libc::EBUSY
}

/// The id of a text; 0 if it cannot have one.
pub(crate) fn name(text: &[u8]) -> u32 {
    match Active::enter() {
        Some(_active) if prepare() => names::intern_text(text),
        _ => 0,
    }
}

fn prepare() -> bool {
    // A lock that a fork holds, too.
    let _held = modules::lock().hold();
    names::prepare()
}

/// Checks an unwinder and makes its region.
///
/// # Safety
/// As for [`add`].
unsafe fn checked(given: *const Unwinder, start: u64, end: u64) -> Option<Region> {
    /// End of user space, except for addresses that a program must request explicitly.
    const LAST: u64 = 1 << 47;
    // SAFETY: the caller promises an unwinder of the size that its first field states.
    let unwinder = unsafe {
        let size = *given.cast::<u32>().as_ref()? as usize;
        if size < size_of::<Unwinder>() {
            return None;
        }
        given.as_ref()?
    };
    if unwinder.version != VERSION || start >= end || end > LAST || unwinder.language.is_null() {
        return None;
    }
    // SAFETY: not null (checked above), so the caller promises a string.
    let name = unsafe { CStr::from_ptr(unwinder.language) }.to_bytes();
    let is_fine = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-_".contains(byte);
    // Single characters are used for other marks in folded stacks.
    if name.len() < 2 || name.len() > LANGUAGE || !name.iter().all(is_fine) {
        return None;
    }
    let mut language = [0; LANGUAGE];
    language.iter_mut().zip(name).for_each(|(to, from)| *to = *from);
    Some(Region {
        id: 0,
        start,
        end,
        unwind: unwinder.unwind?,
        data: unwinder.data as usize,
        wants: unwinder.wants,
        language,
        under: None,
    })
}
