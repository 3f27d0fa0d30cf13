//! How long a thread was ready to run and had no processor.
//!
//! Asked for with time off the processor only: the kernel tells when a thread left and came back, not when it was woken.
//! The file is opened each time, because no descriptor of ours may stay in the program, and for the length of one read: a
//! program that closes every number there is may close this one. Where that is not permitted, nothing is known.

use core::ffi::CStr;

use crate::activity::Active;
use crate::decimal::number;
use crate::sys;

/// Three numbers: nanoseconds on a processor, nanoseconds ready without one, turns (Documentation/scheduler/sched-stats).
const FILE: &CStr = c"/proc/thread-self/schedstat";
/// More than three numbers of 64 bits need.
const LONGEST: usize = 72;

/// Nanoseconds for which the calling thread has been ready and had no processor, all together; none if the kernel does not
/// tell, or system calls are filtered.
pub(crate) fn of_this_thread() -> Option<u64> {
    let _active = Active::enter()?;
    let mut text = [0u8; LONGEST];
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let open = [libc::AT_FDCWD as usize, FILE.as_ptr() as usize, flags as usize, 0, 0, 0];
    // SAFETY: the kernel reads the path, which is constant.
    let file = usize::try_from(unsafe { sys::call(libc::SYS_openat, open) }).ok()?;
    // SAFETY: the kernel writes at most so many bytes into a live buffer; the descriptor is ours.
    let read = unsafe { sys::call(libc::SYS_read, [file, text.as_mut_ptr() as usize, text.len(), 0, 0, 0]) };
    // SAFETY: opened just now, and known to nobody.
    unsafe { sys::call(libc::SYS_close, [file, 0, 0, 0, 0, 0]) };
    second_number(text.get(..usize::try_from(read).ok()?)?)
}

/// The second of the numbers in `text`, which one space separates.
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
