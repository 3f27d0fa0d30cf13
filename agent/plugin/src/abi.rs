//! agent/include/selfwind.h in Rust, with identical layouts.

use core::ffi::{c_char, c_int, c_void};

/// SELFWIND_ABI_VERSION.
pub(crate) const VERSION: u32 = 1;
/// SELFWIND_COLUMNS.
pub(crate) const COLUMNS: usize = 32;

#[repr(C)]
pub(crate) struct Registers {
    pub(crate) known: u64,
    pub(crate) pc: u64,
    pub(crate) value: [u64; COLUMNS],
}

#[repr(C)]
pub(crate) struct Frame {
    pub(crate) size: u32,
    pub(crate) name: u32,
    pub(crate) file: u32,
    pub(crate) first_line: u32,
    pub(crate) line: u32,
}

#[repr(C)]
pub(crate) struct Walk {
    pub(crate) size: u32,
    pub(crate) version: u32,
    pub(crate) frame: u32,
    pub(crate) interrupted: u32,
    pub(crate) registers: Registers,
    pub(crate) state: [u64; 4],
    pub(crate) data: *mut c_void,
    pub(crate) read: unsafe extern "C" fn(*mut Walk, u64, *mut u8, usize) -> c_int,
    pub(crate) name: unsafe extern "C" fn(*mut Walk, u64, u64, u64, usize) -> u32,
    pub(crate) emit: unsafe extern "C" fn(*mut Walk, *const Frame) -> c_int,
    pub(crate) agent: *mut c_void,
}

#[repr(C)]
pub(crate) struct Unwinder {
    pub(crate) size: u32,
    pub(crate) version: u32,
    pub(crate) language: *const c_char,
    pub(crate) unwind: unsafe extern "C" fn(*mut Walk) -> c_int,
    pub(crate) data: *mut c_void,
    pub(crate) wants: u64,
}

#[repr(C)]
pub(crate) struct Abi {
    pub(crate) size: u32,
    pub(crate) version: u32,
    /// For tracepoints in C and C++.
    tracepoint: *const c_void,
    pub(crate) add_region: unsafe extern "C" fn(*const Unwinder, u64, u64) -> c_int,
    pub(crate) add_symbol: unsafe extern "C" fn(*const Unwinder, *const c_char) -> c_int,
    pub(crate) remove: unsafe extern "C" fn(c_int) -> c_int,
    pub(crate) name: unsafe extern "C" fn(*const u8, usize) -> u32,
}

/// The agent's function table, if the agent is in the process.
pub(crate) fn agent() -> Option<&'static Abi> {
    type Find = unsafe extern "C" fn(u32) -> *const Abi;
    // SAFETY: a look-up by name. The agent's function has this type, is never unloaded, and returns null or its own
    // table.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"selfwind_abi".as_ptr());
        if found.is_null() {
            return None;
        }
        core::mem::transmute::<*mut c_void, Find>(found)(VERSION).as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_laid_out_as_in_c() {
        // tests/targets/region_layout.c asserts the same numbers.
        assert_eq!((size_of::<Registers>(), size_of::<Frame>(), size_of::<Unwinder>()), (272, 20, 40));
        assert_eq!((size_of::<Walk>(), core::mem::offset_of!(Walk, state)), (360, 288));
    }
}
