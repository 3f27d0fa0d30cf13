//! What the agent does for programs that ask for it: `include/selfwind.h`, seen from this side.
//!
//! One name is exported, `selfwind_abi`, which programs refer to weakly. A later version of the table adds to its end.

use core::ptr;

use crate::tracepoints::{self, Site};

/// The version of the table, and of all that it leads to.
const VERSION: u32 = 1;

/// `struct selfwind_abi`.
#[repr(C)]
pub(crate) struct Abi {
    size: u32,
    version: u32,
    tracepoint: unsafe extern "C" fn(&Site) -> i32,
}

static ABI: Abi = Abi { size: size_of::<Abi>() as u32, version: VERSION, tracepoint: tracepoints::decide };

/// What this agent does for a program that was written for `version`; null if it does not know that one.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn selfwind_abi(version: u32) -> *const Abi {
    if version == VERSION { &raw const ABI } else { ptr::null() }
}
