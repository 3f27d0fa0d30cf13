//! The durable log, as handlers append to it: where it has no memory left, they give it more, a little at a time.
//!
//! Many processes need little of it, such as the children of an interpreter, and some need all. What has no memory yet is not
//! accessible either, so that a program that locks all its memory does not fill the file. What must never happen here: a
//! write to memory that the file system may not have.

use shm_format::record::DurableRecord;
use shm_format::{Loss, Region};

use crate::activity::is_filtered;
use crate::arch::AnyAlignment;
use crate::sys;

/// Bytes that get memory at once: takes some ten microseconds.
const STEP: u64 = 32 << 10;

/// Appends `record`. If there is no room, the record is lost.
pub fn append(region: &Region, record: &DurableRecord<'_>) -> Result<(), Loss> {
    let _any_alignment = AnyAlignment::permit();
    loop {
        let result = region.append(record);
        if result != Err(Loss::DurableFull) || !grow(region) {
            return result;
        }
    }
}

/// Gives memory to the next part of the log, if that is open to handlers. False if it is not, or there is no memory.
#[cold]
#[inline(never)]
pub fn grow(region: &Region) -> bool {
    let (backed, open) = (region.durable_backed(), region.durable_open());
    let wanted = (backed + STEP).min(open);
    if wanted <= backed || is_filtered() {
        return false;
    }
    let (start, bytes) = region.durable_part(backed, wanted);
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    // SAFETY: a part of the region's mapping. It becomes accessible and gets memory; its contents do not change.
    let is_grown = unsafe {
        sys::call(libc::SYS_mprotect, [start as usize, bytes, access, 0, 0, 0]) == 0
            && sys::populate(start, bytes)
    };
    if is_grown {
        region.set_durable_backed(wanted);
    }
    is_grown
}
