//! The agent's interface for programs and plug-ins: the implementation of `include/selfwind.h`.
//!
//! `selfwind_abi` is the only exported name that interposes nothing; programs refer to it weakly. A plug-in's
//! constructor may run before the agent has started. Only `tracepoint` may be called in a signal handler.

use core::ffi::{c_char, c_int};

use interpreter::regions::{Unwinder, VERSION};

use crate::regions;
use crate::tracepoints::{self, Site};

/// `struct selfwind_abi`. Appending fields does not change the version.
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

/// The agent's function table; null for an unsupported version.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn selfwind_abi(version: u32) -> *const Abi {
    if version == VERSION { &ABI } else { core::ptr::null() }
}

unsafe extern "C" fn add_region(unwinder: *const Unwinder, start: u64, end: u64) -> c_int {
    // SAFETY: by the header's contract `unwinder` is null or valid.
    unsafe { regions::add(unwinder, start, end) }
}

unsafe extern "C" fn add_symbol(unwinder: *const Unwinder, symbol: *const c_char) -> c_int {
    // SAFETY: by the header's contract both are null or valid.
    unsafe { regions::add_symbol(unwinder, symbol) }
}

extern "C" fn remove(region: c_int) -> c_int {
    regions::remove(region)
}

unsafe extern "C" fn name(text: *const u8, bytes: usize) -> u32 {
    if text.is_null() {
        return 0;
    }
    // SAFETY: by the header's contract `bytes` bytes are readable at `text`.
    regions::name(unsafe { core::slice::from_raw_parts(text, bytes) })
}
