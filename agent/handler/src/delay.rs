//! Run-queue delay: how long a thread was runnable without a CPU.
//!
//! Recorded with off-CPU time only: the kernel reports when a thread left its CPU and returned, not when it was woken.
//! The file is opened for each read, because no descriptor of the agent may stay open, and a program that closes all
//! descriptors may close this one. Where opening it is not permitted, the delay is unknown.

use core::ffi::CStr;

use platform::activity::Active;
use platform::sys;

use crate::decimal::number;

/// Three numbers: nanoseconds on a CPU, nanoseconds runnable, number of turns (Documentation/scheduler/sched-stats).
const FILE: &CStr = c"/proc/thread-self/schedstat";
/// Enough for three 64-bit numbers.
const LONGEST: usize = 72;

/// Total run-queue delay of the calling thread in nanoseconds; `None` if the kernel does not tell, or system calls are
/// filtered.
pub(crate) fn of_this_thread() -> Option<u64> {
    let _active = Active::enter()?;
    let mut text = [0u8; LONGEST];
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let open = [libc::AT_FDCWD as usize, FILE.as_ptr() as usize, flags as usize, 0, 0, 0];
    // SAFETY: the kernel reads the path, which is constant.
    let file = usize::try_from(unsafe { sys::call(libc::SYS_openat, open) }).ok()?;
    // SAFETY: the kernel writes at most `text.len()` bytes into `text`; the descriptor was opened just now.
    let read = unsafe { sys::call(libc::SYS_read, [file, text.as_mut_ptr() as usize, text.len(), 0, 0, 0]) };
    // SAFETY: opened just now, and nobody else uses it.
    unsafe { sys::call(libc::SYS_close, [file, 0, 0, 0, 0, 0]) };
    second_number(text.get(..usize::try_from(read).ok()?)?)
}

/// The second of the numbers in `text`, which are separated by single spaces.
fn second_number(text: &[u8]) -> Option<u64> {
    text.split(|byte| *byte == b' ').nth(1).and_then(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_number_counts() {
        assert_eq!(second_number(b"12345 678 9\n"), Some(678));
        assert_eq!(second_number(b"1 18446744073709551615 2\n"), Some(u64::MAX));
        for text in [&b""[..], b"1", b"1  2", b"1 x 2", b"1 99999999999999999999 2"] {
            assert_eq!(second_number(text), None);
        }
    }
}
