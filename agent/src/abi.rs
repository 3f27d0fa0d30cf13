//! What the agent does for programs and plug-ins that ask for it: `include/selfwind.h`, seen from this side.
//!
//! One name is exported that stands in front of no other, `selfwind_abi`; programs refer to it weakly. A plug-in's
//! constructor may run before our own start. Only `tracepoint` may be called in a signal handler.

use core::ffi::{c_char, c_int};

use handler::interpreter::regions::{Unwinder, VERSION};

use crate::regions;
use crate::tracepoints::{self, Site};

/// `struct selfwind_abi`. What is appended raises no version.
#[repr(C)]
pub(crate) struct Abi {
    size: u32,
    version: u32,
    tracepoint: unsafe extern "C" fn(&Site) -> c_int,
    add_region: unsafe extern "C" fn(*const Unwinder, u64, u64) -> c_int,
    add_symbol: unsafe extern "C" fn(*const Unwinder, *const c_char) -> c_int,
    remove: extern "C" fn(c_int) -> c_int,
    name: unsafe extern "C" fn(*const u8, usize) -> u32,
}

static ABI: Abi = Abi {
    size: size_of::<Abi>() as u32,
    version: VERSION,
    tracepoint: tracepoints::decide,
    add_region,
    add_symbol,
    remove,
    name,
};

/// What the agent offers, or null for a version that it does not have.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn selfwind_abi(version: u32) -> *const Abi {
    if version == VERSION { &ABI } else { core::ptr::null() }
}

unsafe extern "C" fn add_region(unwinder: *const Unwinder, start: u64, end: u64) -> c_int {
    // SAFETY: the header's contract.
    unsafe { regions::add(unwinder, start, end) }
}

unsafe extern "C" fn add_symbol(unwinder: *const Unwinder, symbol: *const c_char) -> c_int {
    // SAFETY: the header's contract.
    unsafe { regions::add_symbol(unwinder, symbol) }
}

extern "C" fn remove(region: c_int) -> c_int {
    regions::remove(region)
}

unsafe extern "C" fn name(text: *const u8, bytes: usize) -> u32 {
    if text.is_null() {
        return 0;
    }
    // SAFETY: the header's contract: so many bytes are there.
    regions::name(unsafe { core::slice::from_raw_parts(text, bytes) })
}
