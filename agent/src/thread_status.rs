//! What the kernel says about a thread of this process in /proc/self/task/TID/status.

use core::ffi::CStr;

use platform::sys;

use alloc::vec::Vec;

use crate::hexadecimal;
use crate::kernel;

/// A thread's status file, as it was when it was read.
pub(crate) struct ThreadStatus(Vec<u8>);

impl ThreadStatus {
    /// Reads it; `None` if the thread has ended, or there is no /proc.
    pub(crate) fn read(tid: u32) -> Option<ThreadStatus> {
        if tid == sys::process_id() {
            // Also where /proc has other numbers (another PID namespace). proot would confuse thread-self with its own.
            return Self::read_at(c"/proc/self/status");
        }
        let path = alloc::format!("/proc/self/task/{tid}/status\0");
        Self::read_at(CStr::from_bytes_with_nul(path.as_bytes()).ok()?)
    }

    fn read_at(path: &CStr) -> Option<ThreadStatus> {
        /// The lines that are asked for here come before those with a length per processor.
        const PART: usize = 4096;
        // On the heap: a process may start on a small stack.
        let mut buffer = alloc::vec![0u8; PART];
        let length = kernel::read_file(path, &mut buffer).ok()?.len();
        buffer.truncate(length);
        Some(ThreadStatus(buffer))
    }

    /// The value on the line of that name.
    fn value(&self, name: &[u8]) -> Option<&[u8]> {
        let line = self.0.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name))?;
        line.strip_prefix(b":").map(<[u8]>::trim_ascii)
    }

    /// A set of signals; empty if unknown.
    fn signals(&self, name: &[u8]) -> u64 {
        self.value(name).and_then(hexadecimal::number).unwrap_or(0)
    }

    /// The signals that the thread blocks.
    pub(crate) fn blocked(&self) -> u64 {
        self.signals(b"SigBlk")
    }

    /// Whether `signal` is pending for the thread or for the process.
    pub(crate) fn has_pending(&self, signal: i32) -> bool {
        (self.signals(b"SigPnd") | self.signals(b"ShdPnd")) >> (signal - 1) & 1 != 0
    }

    /// Whether the thread sleeps, interruptibly.
    pub(crate) fn is_asleep(&self) -> bool {
        self.value(b"State").is_some_and(|state| state.starts_with(b"S"))
    }

    /// Whether a tracer (ptrace) sees the thread's signals first.
    pub(crate) fn is_traced(&self) -> bool {
        self.value(b"TracerPid").is_some_and(|tracer| tracer != b"0")
    }

    /// Whether a filter (seccomp) decides on the thread's system calls.
    pub(crate) fn is_filtered(&self) -> bool {
        self.value(b"Seccomp").is_some_and(|mode| mode != b"0")
    }
}
