//! The memory of a traced process: /proc/PID/mem, through which a tracer may write to any mapped page.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// Memory of one process.
#[derive(Debug)]
pub(super) struct Memory(File);

impl Memory {
    /// Opens the memory of `pid`.
    pub(super) fn of(pid: i32) -> io::Result<Self> {
        OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem")).map(Self)
    }

    /// Fills `bytes` from `address` on.
    pub(super) fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, address)
    }

    /// The `N` words at `address`.
    pub(super) fn words<const N: usize>(&self, address: u64) -> io::Result<[u64; N]> {
        let mut words = [[0u8; 8]; N];
        self.read(address, words.as_flattened_mut())?;
        Ok(words.map(u64::from_le_bytes))
    }

    /// Writes `bytes` to `address`.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, address)
    }
}
