//! libgcc's `_Unwind_Backtrace`, and glibc's `backtrace()` on top of it.

use crate::method::{MOST, Method, Stack};
use crate::workload::Walkway;
use std::ffi::{c_int, c_void};

unsafe extern "C" {
    fn _Unwind_Backtrace(trace: extern "C" fn(*mut c_void, *mut c_void) -> c_int, data: *mut c_void)
    -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> u64;
    fn backtrace(buffer: *mut *mut c_void, size: c_int) -> c_int;
}

/// `_Unwind_Backtrace` with a callback that notes each address.
pub(crate) struct UnwindBacktrace;

struct Sink<'a> {
    stack: &'a mut Stack,
    depth: usize,
}

extern "C" fn note(context: *mut c_void, sink: *mut c_void) -> c_int {
    const STOP: c_int = 4; // _URC_NORMAL_STOP
    // SAFETY: `_Unwind_Backtrace` hands back the pointer given by `capture`, whose frame is live.
    let sink = unsafe { &mut *sink.cast::<Sink<'_>>() };
    if sink.depth == MOST {
        return STOP;
    }
    // SAFETY: the context is the one the unwinder calls with, valid during the call.
    sink.stack[sink.depth] = unsafe { _Unwind_GetIP(context) };
    sink.depth += 1;
    0
}

impl Method for UnwindBacktrace {
    fn name(&self) -> &'static str {
        "libgcc _Unwind_Backtrace"
    }

    fn capture(&mut self, _: &Walkway, stack: &mut Stack) -> usize {
        let mut sink = Sink { stack, depth: 0 };
        // SAFETY: the callback matches the ABI's _Unwind_Trace_Fn and the data outlives the call.
        unsafe { _Unwind_Backtrace(note, std::ptr::from_mut(&mut sink).cast()) };
        sink.depth
    }
}

/// glibc's `backtrace()`.
pub(crate) struct Backtrace;

impl Method for Backtrace {
    fn name(&self) -> &'static str {
        "glibc backtrace()"
    }

    fn capture(&mut self, _: &Walkway, stack: &mut Stack) -> usize {
        // SAFETY: the buffer holds MOST pointers, as said.
        let depth = unsafe { backtrace(stack.as_mut_ptr().cast(), MOST as c_int) };
        depth as usize
    }
}
