//! Signals that are pending for a thread of this process, or being handled there.

use core::ffi::CStr;

use alloc::vec::Vec;

use crate::kernel;
use crate::thread_list;

/// Whether `signal` is pending for any thread, or this cannot be determined.
pub(crate) fn any(signal: i32) -> bool {
    let mut found = false;
    let listed = thread_list::each(|tid| {
        // A thread that is gone has none.
        found = status(tid).is_some_and(|status| waits(&status, signal));
        !found
    });
    found || listed.is_err()
}

/// Whether `signal` is neither pending for thread `tid` nor being handled there: the agent's handler blocks every signal
/// until it has returned.
pub(crate) fn is_served(tid: u32, signal: i32) -> bool {
    /// SIGKILL and SIGSTOP cannot be blocked; the C libraries reserve the first real-time signals.
    const NEVER_BLOCKED: u64 = 1 << 8 | 1 << 18 | 0b111 << 31;
    status(tid).is_none_or(|status| {
        let blocks_all = sets(&status, b"SigBlk:").any(|blocked| blocked | NEVER_BLOCKED == u64::MAX);
        !blocks_all && !waits(&status, signal)
    })
}

/// The thread's status file; `None` if the thread has ended.
fn status(tid: u32) -> Option<Vec<u8>> {
    let path = alloc::format!("/proc/self/task/{tid}/status\0");
    let mut buffer = alloc::vec![0u8; 4096];
    let length = kernel::read_file(CStr::from_bytes_with_nul(path.as_bytes()).ok()?, &mut buffer).ok()?.len();
    buffer.truncate(length);
    Some(buffer)
}

/// The sets of signals on the lines that begin with `key`.
fn sets<'a>(status: &'a [u8], key: &'a [u8]) -> impl Iterator<Item = u64> + 'a {
    status
        .split(|byte| *byte == b'\n')
        .filter_map(move |line| line.strip_prefix(key))
        .filter_map(|set| u64::from_str_radix(core::str::from_utf8(set).ok()?.trim(), 16).ok())
}

/// Whether it is pending for that thread or for the process.
fn waits(status: &[u8], signal: i32) -> bool {
    sets(status, b"SigPnd:").chain(sets(status, b"ShdPnd:")).any(|set| set >> (signal - 1) & 1 != 0)
}
