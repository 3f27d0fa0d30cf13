//! Memory in huge pages, for large tables that are read at random: an access there often waits for the translation of its
//! address.
//!
//! The kernel decides whether it gives any (/sys/kernel/mm/transparent_hugepage/enabled). What must never happen here: that a
//! process pays for huge pages of which it uses little. So memory is only prepared for them, until it is known to be used.

use crate::sys;

/// Size in bytes.
const SIZE: usize = 2 << 20;

/// [`sys::map_unlocked`], at addresses that huge pages can have.
#[must_use]
pub fn map(bytes: usize) -> Option<*mut u8> {
    let bytes = bytes.next_multiple_of(SIZE);
    let base = sys::map_unlocked(bytes + SIZE)? as usize;
    let start = base.next_multiple_of(SIZE);
    let [before, after] = [(base, start - base), (start + bytes, base + SIZE - start)];
    for (rest, bytes) in [before, after].into_iter().filter(|(_, bytes)| *bytes > 0) {
        // SAFETY: a part of the mapping just made, which nobody uses.
        unsafe { sys::call(libc::SYS_munmap, [rest, bytes, 0, 0, 0, 0]) };
    }
    Some(start as *mut u8)
}

/// Uses huge pages for memory that [`map`] has returned for as many bytes. Before Linux 6.1 its first pages stay small, or
/// become one huge page later.
pub fn use_for(start: *mut u8, bytes: usize) {
    const MADV_COLLAPSE: usize = 25;
    let bytes = bytes.next_multiple_of(SIZE);
    // SAFETY: neither advice changes contents.
    unsafe {
        sys::call(libc::SYS_madvise, [start as usize, bytes, libc::MADV_HUGEPAGE as usize, 0, 0, 0]);
        sys::call(libc::SYS_madvise, [start as usize, SIZE, MADV_COLLAPSE, 0, 0, 0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_keeps_its_contents() {
        const BYTES: usize = 3 * SIZE - 4096;
        let start = map(BYTES).unwrap();
        assert!((start as usize).is_multiple_of(SIZE));
        // SAFETY: mapped just now, for this test alone.
        let memory = unsafe { core::slice::from_raw_parts_mut(start, BYTES) };
        assert!(memory.iter().all(|byte| *byte == 0));
        memory.iter_mut().step_by(1000).for_each(|byte| *byte = 7);
        use_for(start, BYTES);
        assert!(memory.iter().enumerate().all(|(at, byte)| *byte == if at % 1000 == 0 { 7 } else { 0 }));
    }
}
