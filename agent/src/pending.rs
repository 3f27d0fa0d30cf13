//! Signals that are pending for a thread of this process, or being handled there.

use crate::thread_list;
use crate::thread_status::ThreadStatus;

/// Whether `signal` is pending for any thread, or this cannot be determined.
pub(crate) fn any(signal: i32) -> bool {
    let mut found = false;
    let listed = thread_list::each(|tid| {
        // A thread that is gone has none.
        found = ThreadStatus::read(tid).is_some_and(|status| status.has_pending(signal));
        !found
    });
    found || listed.is_err()
}

/// Whether `signal` is neither pending for thread `tid` nor being handled there, given that nothing sends it any more, and
/// that the thread has used `ran_ns` of CPU time since. The agent's handler blocks every signal until it has returned, and
/// never sleeps.
pub(crate) fn is_served(tid: u32, signal: i32, ran_ns: u64) -> bool {
    /// SIGKILL and SIGSTOP cannot be blocked; the C libraries reserve the first real-time signals.
    const NEVER_BLOCKED: u64 = 1 << 8 | 1 << 18 | 0b111 << 31;
    /// More than the kernel takes from there where a signal is no longer pending to where its handler blocks the others.
    const DELIVERY_NS: u64 = 100_000;
    ThreadStatus::read(tid).is_none_or(|status| {
        let may_handle = ran_ns < DELIVERY_NS || status.blocked() | NEVER_BLOCKED == u64::MAX;
        !status.has_pending(signal) && (status.is_asleep() || !may_handle)
    })
}
