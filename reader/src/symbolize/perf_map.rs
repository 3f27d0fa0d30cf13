//! Names of generated code from `/tmp/perf-PID.map`, as node, Java agents, Python and others write it.
//!
//! The format is perf's (tools/perf/Documentation/jit-interface.txt): lines of `START SIZE NAME`, numbers
//! hexadecimal. The file lies where anybody can write and pids come again, so it counts only if the
//! process's user or root owns it and it was written after the process started.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Longest line that is read; the rest of the file is left.
const LONGEST_LINE: u64 = 64 * 1024;

/// The generated functions of one process.
#[derive(Debug, Default)]
pub struct PerfMap {
    /// Sorted by address. When code was replaced, the later line counts.
    functions: Vec<Function>,
}

#[derive(Debug)]
struct Function {
    start: u64,
    end: u64,
    name: String,
}

impl PerfMap {
    /// Where a process writes its map.
    pub fn path(pid: u32) -> PathBuf {
        PathBuf::from(format!("/tmp/perf-{pid}.map"))
    }

    /// Reads a map that belongs to `uid` or root and was written at or after `since` (seconds since 1970).
    ///
    /// # Errors
    /// When there is none, when it is not to be trusted, and when reading fails.
    pub fn read(path: &Path, uid: u32, since: i64) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        let trusted = metadata.is_file() && (metadata.uid() == uid || metadata.uid() == 0);
        if !trusted || metadata.mtime() < since {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "of another user or an earlier process",
            ));
        }
        Self::parse(BufReader::new(file))
    }

    fn parse(mut lines: impl BufRead) -> io::Result<Self> {
        let mut functions = Vec::new();
        let mut line = Vec::new();
        while io::Read::take(&mut lines, LONGEST_LINE).read_until(b'\n', &mut line)? > 0 {
            functions.extend(function(&String::from_utf8_lossy(&line)));
            line.clear();
        }
        // Stable, so that of lines with the same start the last one stays.
        functions.reverse();
        functions.sort_by_key(|function: &Function| function.start);
        functions.dedup_by_key(|function| function.start);
        Ok(PerfMap { functions })
    }

    /// The name of the function at `address`.
    pub fn find(&self, address: u64) -> Option<&str> {
        let behind = self.functions.partition_point(|function| function.start <= address);
        let function = self.functions.get(behind.checked_sub(1)?)?;
        (address < function.end).then_some(&*function.name)
    }
}

/// A line of a map.
fn function(line: &str) -> Option<Function> {
    let mut parts = line.trim_end().splitn(3, ' ');
    let hexadecimal = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let start = hexadecimal(parts.next()?)?;
    let size = hexadecimal(parts.next()?)?;
    let name = parts.next()?.trim_start().to_owned();
    Some(Function { start, end: start.checked_add(size)?, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(text: &str) -> PerfMap {
        PerfMap::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_later_line_counts() {
        let map = map("1000 100 old\n0x2000 10 LazyCompile:*f /a b.js:3\n1000 80 new\nbroken\nff zz x\n");
        assert_eq!(map.find(0xfff), None);
        assert_eq!(map.find(0x1000), Some("new"));
        assert_eq!(map.find(0x1080), None);
        assert_eq!(map.find(0x200f), Some("LazyCompile:*f /a b.js:3"));
        assert_eq!(map.find(0x2010), None);
    }

    #[test]
    fn endless_lines_and_sizes_do_no_harm() {
        let long = format!("1000 10 {}\n2000 10 f\n", "x".repeat(200_000));
        assert_eq!(map(&long).find(0x2008), Some("f"));
        assert_eq!(map("ffffffffffffffff 10 f\n").find(u64::MAX), None);
    }

    #[test]
    fn maps_of_others_and_of_the_past_are_refused() {
        let path = std::env::temp_dir().join(format!("selfwind-perf-map-{}", std::process::id()));
        std::fs::write(&path, "1000 10 f\n").unwrap();
        let metadata = path.metadata().unwrap();
        let (uid, written) = (metadata.uid(), metadata.mtime());
        assert_eq!(PerfMap::read(&path, uid, written).unwrap().find(0x1000), Some("f"));
        assert!(PerfMap::read(&path, uid, written + 1).is_err());
        if uid != 0 {
            assert!(PerfMap::read(&path, uid + 1, written).is_err());
        }
        std::fs::remove_file(&path).unwrap();
    }
}
