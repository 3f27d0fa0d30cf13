//! Grows a region when threads start and the log fills up: maps and backs memory, outside handlers. The reader can back
//! memory that is already mapped at any time (`offered` in FORMAT.md).

use core::ptr::NonNull;

use platform::activity::Active;
use platform::log;
use shm_format::Region;
use shm_format::layout::PAGE;

use crate::agent;
use crate::kernel::{self, Errno};

/// Up to this many threads each get a chunk before their first sample. Of more threads, not all start sampling at once.
const BUSY: usize = 1024;
/// Spare chunks for further threads.
const SPARE: u32 = 32;
/// Bytes of chunks that are mapped beyond the backed ones, for the reader to back.
const EXTENSIBLE: u32 = 2 << 20;

/// Backs `bytes` of the region's file from `offset`, which are mapped at `start`: through the mapping, which needs no
/// descriptor, or on kernels before 5.14 through the file's name. `None` if the file system is full.
fn back(start: *mut u8, offset: usize, bytes: usize) -> Option<()> {
    // SAFETY: inside the region's mapping.
    match unsafe { kernel::populate(start, bytes) } {
        Ok(()) => Some(()),
        Err(Errno(libc::EINVAL)) => {
            let region = agent::get()?.directory.open_region(agent::myself()?)?;
            region.allocate(offset, bytes).ok()
        }
        Err(_) => None,
    }
}

/// Number of chunks for `threads` threads. A single thread gets by with the initial ones.
fn chunks_for(region: &Region, threads: usize) -> u32 {
    let born = if threads > 1 { threads.min(BUSY) as u32 + SPARE } else { 0 };
    let used = region.chunks_in_use();
    born.max(used.saturating_add(if threads > 1 { SPARE } else { 0 })).min(region.geometry().chunk_capacity)
}

/// Whether `threads` threads need more chunks than the region has.
pub(crate) fn is_needed(region: &Region, threads: usize) -> bool {
    chunks_for(region, threads) > region.chunks_backed() || is_mapping_needed(region, threads)
}

/// Whether too few chunks are mapped for the reader to back one for each of `threads` threads, and some spare ones.
fn is_mapping_needed(region: &Region, threads: usize) -> bool {
    let some = EXTENSIBLE / region.geometry().chunk_size;
    let wanted = (threads as u32).max(region.chunks_backed()).saturating_add(some);
    threads > 1 && wanted > region.chunks_mapped() && region.next_chunks().is_some()
}

/// Maps and backs chunks for `threads` threads. One caller at a time.
pub(crate) fn grow_pool(region: &Region, threads: usize) {
    let Some(_active) = Active::enter() else { return };
    while is_mapping_needed(region, threads) && map_more(region).is_some() {}
    let wanted = chunks_for(region, threads);
    let backed = region.chunks_backed();
    if wanted > backed {
        // A quarter more than needed, so that not every new thread grows the pool.
        back_chunks(region, backed, (wanted + wanted / 4).min(region.chunks_mapped()));
    }
    region.invite_offers();
}

/// Maps chunks of `bytes` in total, for the reader to back when it finds that more are needed. One caller at a time.
#[cfg(feature = "allocations")]
pub(crate) fn extend_pool(region: &Region, bytes: usize) {
    let Some(_active) = Active::enter() else { return };
    let is_short = || (region.chunks_mapped() as usize) < bytes / region.geometry().chunk_size as usize;
    while is_short() && map_more(region).is_some() {}
    region.invite_offers();
}

/// Maps the next chunks.
fn map_more(region: &Region) -> Option<()> {
    let (first, count) = region.next_chunks()?;
    let chunk = region.geometry().chunk_size as usize;
    let last = region.chunk_address(first.checked_sub(1)?)?;
    // SAFETY: the last page of the last chunk belongs to the region; the new mapping continues the file from there, and
    // all but its first page stays mapped.
    unsafe {
        let page = last.add(chunk - PAGE).as_ptr();
        let mapped = kernel::map_on(page, PAGE + count as usize * chunk).ok()?;
        kernel::unmap(mapped.as_ptr(), PAGE);
        region.add_chunks(mapped.add(PAGE));
    }
    Some(())
}

/// Backs the chunks from `from` to `to`, as far as the file system has space.
fn back_chunks(region: &Region, from: u32, to: u32) {
    let chunk = region.geometry().chunk_size as usize;
    let mut from = from;
    while from < to {
        let Some(start) = region.chunk_address(from) else { return };
        let follows = |end: &u32| {
            let expected = start.addr().get() + (end - from) as usize * chunk;
            region.chunk_address(*end).is_some_and(|address| address.addr().get() == expected)
        };
        let run = (from..to).take_while(follows).count() as u32;
        let Some(backed) = back_run(region, start, from, run) else { return };
        region.set_chunks_backed(from + backed);
        from += backed;
    }
}

/// Backs `count` chunks from `first` on, which are adjacent in memory. Returns how many were backed.
fn back_run(region: &Region, start: NonNull<u8>, first: u32, count: u32) -> Option<u32> {
    let (geometry, mut count) = (region.geometry(), count);
    while count > 0 {
        let offset = geometry.chunk_offset(first);
        if back(start.as_ptr(), offset, geometry.chunk_offset(first + count) - offset).is_some() {
            return Some(count);
        }
        count /= 2;
    }
    None
}

/// Backs more of the durable log; false if it cannot grow. One caller at a time.
pub(crate) fn grow_log(region: &Region) -> bool {
    /// Bytes that are backed at once.
    const MOST: u64 = 1 << 20;
    let backed = region.durable_backed();
    let wanted = (backed + backed.min(MOST)).min(region.geometry().durable_capacity);
    let Some(_active) = Active::enter().filter(|_| wanted > backed) else { return false };
    let offset = region.geometry().durable_offset() + backed as usize;
    let (start, bytes) = region.durable_part(backed, wanted);
    // SAFETY: inside the region's mapping, of which this part becomes usable for the log.
    let grown =
        unsafe { kernel::make_accessible(start, bytes) }.is_ok() && back(start, offset, bytes).is_some();
    if grown {
        region.set_durable_backed(wanted);
    }
    grown
}

/// Lets handlers back the durable log; false if the kernel has no means for that. One caller at a time.
pub(crate) fn open_log(region: &Region) -> bool {
    let Some(_active) = Active::enter() else { return false };
    region.open_durable();
    log::grow(region)
}
