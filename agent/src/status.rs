//! The status file of this process, or of one of its threads (proc_pid_status(5)).

use core::ffi::CStr;

use alloc::vec::Vec;

use crate::hexadecimal;
use crate::kernel;

/// Maximum size of a status file.
const LONGEST: usize = 4096;

/// The contents of a status file.
pub(crate) struct Status(Vec<u8>);

impl Status {
    /// That of this process.
    pub(crate) fn of_process() -> Option<Self> {
        Self::read(c"/proc/self/status")
    }

    /// That of thread `tid`; `None` if the thread has ended.
    pub(crate) fn of_thread(tid: u32) -> Option<Self> {
        let path = alloc::format!("/proc/self/task/{tid}/status\0");
        Self::read(CStr::from_bytes_with_nul(path.as_bytes()).ok()?)
    }

    fn read(path: &CStr) -> Option<Self> {
        // On the heap: a process may start on a small stack.
        let mut buffer = alloc::vec![0u8; LONGEST];
        let length = kernel::read_file(path, &mut buffer).ok()?.len();
        buffer.truncate(length);
        Some(Self(buffer))
    }

    /// The value on the line that begins with `key`, such as `SigBlk:`.
    pub(crate) fn value(&self, key: &[u8]) -> Option<&[u8]> {
        self.0.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key)).map(<[u8]>::trim_ascii)
    }

    /// The set of signals on the line that begins with `key`.
    pub(crate) fn set(&self, key: &[u8]) -> Option<u64> {
        hexadecimal::number(self.value(key)?)
    }
}
