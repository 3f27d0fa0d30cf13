//! The kernel's vDSO, which has no file.
//!
//! All processes of a boot map the same image, so the reader uses its own; the recorded build-id tells whether it is the same.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;

/// Whether the path of a recorded module names the vDSO.
pub(super) fn is_vdso(path: &str) -> bool {
    path == "[vdso]" || path.starts_with("linux-vdso.so") || path.starts_with("linux-gate.so")
}

/// The vDSO of this process.
pub(super) fn image() -> io::Result<Vec<u8>> {
    for line in BufReader::new(File::open("/proc/self/maps")?).lines() {
        let line = line?;
        if let Some((start, end)) = line.strip_suffix("[vdso]").and_then(range) {
            let mut bytes = vec![0; (end - start) as usize];
            File::open("/proc/self/mem")?.read_exact_at(&mut bytes, start)?;
            return Ok(bytes);
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "this process has no vDSO"))
}

/// The address range at the start of a line of /proc/PID/maps.
fn range(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    (start < end).then_some((start, end))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_own_vdso_is_an_elf_file() {
        assert_eq!(super::image().unwrap()[..4], *b"\x7fELF");
    }

    #[test]
    fn names() {
        assert!(super::is_vdso("[vdso]") && super::is_vdso("linux-vdso.so.1"));
        assert!(!super::is_vdso("/lib/libc.so.6"));
    }
}
