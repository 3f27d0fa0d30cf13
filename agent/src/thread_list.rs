//! The threads of this process, as the kernel lists them.

use crate::kernel::{Errno, File};
use handler::decimal::number;

/// Bytes before the name in a `linux_dirent64`: inode 8, offset 8, record length 2, type 1.
const NAME_AT: usize = 19;

/// Calls `visit` with the id of each thread until it returns false. Threads that start or end meanwhile may be missed.
pub(crate) fn each(mut visit: impl FnMut(u32) -> bool) -> Result<(), Errno> {
    let directory = File::read_only(c"/proc/self/task")?;
    let mut buffer = [0u8; 4096];
    loop {
        let count = directory.entries(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        let mut rest = &buffer[..count];
        while let Some(length) = rest.get(16..18).map(|length| u16::from_le_bytes([length[0], length[1]])) {
            let (entry, after) = rest.split_at((length as usize).clamp(NAME_AT, rest.len()));
            rest = after;
            let name = entry[NAME_AT..].split(|byte| *byte == 0).next().unwrap_or(&[]);
            if let Some(tid) = number(name)
                && !visit(tid as u32)
            {
                return Ok(());
            }
        }
    }
}
