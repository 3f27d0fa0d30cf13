//! Signals that wait for a thread of this process.

use crate::decimal::number;
use crate::kernel::{self, File};

/// True if `signal` waits for any thread, or if that cannot be found out.
pub(crate) fn any(signal: i32) -> bool {
    let Ok(directory) = File::read_only(c"/proc/self/task") else { return true };
    let mut buffer = alloc::vec![0u8; 4096];
    while let Ok(count @ 1..) = directory.entries(&mut buffer) {
        let mut rest = &buffer[..count];
        // `linux_dirent64`: inode 8, offset 8, record length 2, type 1, name.
        while let Some(length) = rest.get(16..18).map(|length| u16::from_le_bytes([length[0], length[1]])) {
            let (entry, after) = rest.split_at((length as usize).clamp(19, rest.len()));
            rest = after;
            let name = entry[19..].split(|byte| *byte == 0).next().unwrap_or(&[]);
            if number(name).is_some_and(|tid| waits(tid, signal)) {
                return true;
            }
        }
    }
    false
}

/// True if it waits for thread `tid` or for whichever takes it.
fn waits(tid: u64, signal: i32) -> bool {
    let path = alloc::format!("/proc/self/task/{tid}/status\0");
    let mut buffer = alloc::vec![0u8; 4096];
    let Ok(path) = core::ffi::CStr::from_bytes_with_nul(path.as_bytes()) else { return true };
    // A thread that is gone has none.
    let Ok(status) = kernel::read_file(path, &mut buffer) else { return false };
    let sets = status
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.strip_prefix(b"SigPnd:").or_else(|| line.strip_prefix(b"ShdPnd:")));
    sets.filter_map(|set| core::str::from_utf8(set).ok())
        .any(|set| u64::from_str_radix(set.trim(), 16).is_ok_and(|set| set >> (signal - 1) & 1 != 0))
}
