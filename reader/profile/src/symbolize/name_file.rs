//! A file in which a process names its generated code: a perf map or a jitdump.
//!
//! It is in a directory that anyone can write to, and pids are reused. So it is used only if it belongs to the process's
//! user or root and was written after the process started. Once open, it stays readable even if the process removes it.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Take};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;

use super::{jitdump, perf_map};
use crate::profile_file::GeneratedFunction;

/// Maximum number of bytes to read.
const LONGEST_FILE: u64 = 4 << 30;

/// An open file, read once.
#[derive(Debug)]
pub struct NameFile(Take<File>);

impl NameFile {
    /// Opens a file of a process of user `uid` that started at `since` (seconds since 1970).
    ///
    /// # Errors
    /// If there is none, or it cannot be trusted.
    pub fn open(path: &Path, uid: u32, since: i64) -> io::Result<Self> {
        // Do not block on a FIFO that someone created there.
        let flags = OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
        let metadata = file.metadata()?;
        let trusted = metadata.is_file() && (metadata.uid() == uid || metadata.uid() == 0);
        if !trusted || metadata.mtime() < since {
            let why = "of another user or an earlier process";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(NameFile(file.take(LONGEST_FILE)))
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> Option<u64> {
        self.0.get_ref().metadata().ok().map(|metadata| metadata.len())
    }

    /// Reads it as a map: the functions for which `wanted` (first address, bytes) is true, in the order of the map. `since` says
    /// before when the line at an offset in bytes was not there (nanoseconds on the recording's clock; 0 if that is not known).
    ///
    /// # Errors
    /// If reading fails.
    pub fn perf_map(
        self,
        wanted: impl Fn(u64, u64) -> bool,
        since: impl Fn(u64) -> u64,
    ) -> io::Result<Vec<GeneratedFunction>> {
        perf_map::parse(BufReader::with_capacity(1 << 16, self.0), wanted, since)
    }

    /// Reads it as a jitdump: the functions for which `wanted` (first address, bytes) is true, in the order of time.
    ///
    /// # Errors
    /// If reading fails, or it is not a jitdump.
    pub fn jitdump(self, wanted: impl Fn(u64, u64) -> bool) -> io::Result<Vec<GeneratedFunction>> {
        jitdump::parse(BufReader::with_capacity(1 << 16, self.0), wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_others_and_of_the_past_are_refused() {
        let path = std::env::temp_dir().join(format!("selfwind-name-file-{}", std::process::id()));
        std::fs::write(&path, "1000 10 f\n").unwrap();
        let metadata = path.metadata().unwrap();
        let (uid, written) = (metadata.uid(), metadata.mtime());
        let file = NameFile::open(&path, uid, written).unwrap();
        assert!(NameFile::open(&path, uid, written + 1).is_err());
        if uid != 0 {
            assert!(NameFile::open(&path, uid + 1, written).is_err());
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.perf_map(|_, _| true, |_| 0).unwrap()[0].name, "f", "removed, yet open");
        // A FIFO without a writer.
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        assert!(NameFile::open(&path, uid, 0).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
