//! Pending signals of this process.

use crate::kernel;
use crate::thread_list;

/// Whether `signal` is pending for any thread, or this cannot be determined.
pub(crate) fn any(signal: i32) -> bool {
    let mut found = false;
    let listed = thread_list::each(|tid| {
        found = waits(tid, signal);
        !found
    });
    found || listed.is_err()
}

/// Whether it is pending for thread `tid` or for the process.
fn waits(tid: u32, signal: i32) -> bool {
    let path = alloc::format!("/proc/self/task/{tid}/status\0");
    let mut buffer = alloc::vec![0u8; 4096];
    let Ok(path) = core::ffi::CStr::from_bytes_with_nul(path.as_bytes()) else { return true };
    // A thread that has ended has none.
    let Ok(status) = kernel::read_file(path, &mut buffer) else { return false };
    let sets = status
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.strip_prefix(b"SigPnd:").or_else(|| line.strip_prefix(b"ShdPnd:")));
    sets.filter_map(|set| core::str::from_utf8(set).ok())
        .any(|set| u64::from_str_radix(set.trim(), 16).is_ok_and(|set| set >> (signal - 1) & 1 != 0))
}
