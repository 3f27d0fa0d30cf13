//! Survives the truncation of mapped files.
//!
//! A region is a file that its process can open by name and truncate, by accident (a program that truncates everything in its
//! runtime directory) or maliciously. An access beyond the end raises SIGBUS, which would kill the reader and end the recording of
//! all processes. Here the lost pages are replaced by zeros for the rest of the mapping, which the format's checks handle like any
//! other invalid contents, and the caller is told.
//!
//! What must never happen here: hiding a SIGBUS that has another cause.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Once;

use memmap2::MmapRaw;
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use shm_format::layout::PAGE;

/// What the thread is reading.
#[derive(Clone, Copy)]
struct Reading {
    start: usize,
    end: usize,
    truncated: bool,
}

const NOTHING: Reading = Reading { start: 0, end: 0, truncated: false };

thread_local! {
    // Constant and without a destructor: reading it in a signal handler is one load.
    static READING: Cell<Reading> = const { Cell::new(NOTHING) };
}

/// Runs `access`, which accesses `map`. The second value is true if pages of it were beyond the end of the file.
pub(super) fn guarded<T>(map: &MmapRaw, access: impl FnOnce() -> T) -> (T, bool) {
    install();
    let start = map.as_ptr() as usize;
    let before = READING.replace(Reading { start, end: start + map.len(), truncated: false });
    let result = access();
    let truncated = READING.replace(before).truncated;
    (result, truncated)
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let flags = SaFlags::SA_SIGINFO | SaFlags::SA_ONSTACK;
        let action = SigAction::new(SigHandler::SigAction(on_bus_error), flags, SigSet::empty());
        // SAFETY: the handler uses a constant thread-local and two system calls, nothing else. Should the call
        // fail, everything is as it was without it.
        let _ = unsafe { sigaction(Signal::SIGBUS, &action) };
    });
}

extern "C" fn on_bus_error(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a live `siginfo` of SIGBUS, which has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    let reading = READING.get();
    if (reading.start..reading.end).contains(&address) && replace(address & !(PAGE - 1), reading.end) {
        READING.set(Reading { truncated: true, ..reading });
        return;
    }
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action is no function; the access is repeated on return, and dies as it would have.
    let _ = unsafe { sigaction(Signal::SIGBUS, &default) };
}

/// Maps zeros where the file has ended.
fn replace(start: usize, end: usize) -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the range lies inside a mapping that the interrupted `guarded` borrows, and stays mapped and
    // accessible with the same rights; its content belongs to another process and is never expected to hold still.
    unsafe { mmap_anonymous(start as *mut c_void, end - start, access, flags) }.is_ok()
}
