//! Signals that are pending for a thread of this process, or being handled there.

use crate::status::Status;
use crate::thread_list;

/// Whether `signal` is pending for any thread, or this cannot be determined.
pub(crate) fn any(signal: i32) -> bool {
    let mut found = false;
    let listed = thread_list::each(|tid| {
        // A thread that is gone has none.
        found = Status::of_thread(tid).is_some_and(|status| waits(&status, signal));
        !found
    });
    found || listed.is_err()
}

/// Whether `signal` is neither pending for thread `tid` nor being handled there: the agent's handler blocks every signal
/// until it has returned.
pub(crate) fn is_served(tid: u32, signal: i32) -> bool {
    /// SIGKILL and SIGSTOP cannot be blocked; the C libraries reserve the first real-time signals.
    const NEVER_BLOCKED: u64 = 1 << 8 | 1 << 18 | 0b111 << 31;
    Status::of_thread(tid).is_none_or(|status| {
        let blocks_all = status.set(b"SigBlk:").is_some_and(|blocked| blocked | NEVER_BLOCKED == u64::MAX);
        !blocks_all && !waits(&status, signal)
    })
}

/// Whether it is pending for that thread or for the process.
fn waits(status: &Status, signal: i32) -> bool {
    let is_in = |key| status.set(key).is_some_and(|set| set >> (signal - 1) & 1 != 0);
    is_in(b"SigPnd:") || is_in(b"ShdPnd:")
}
