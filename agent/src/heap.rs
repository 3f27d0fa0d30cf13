//! The agent's own heap, on anonymous mappings.
//!
//! The program's allocator may be interposed, may hold its locks, or may not be ready yet, so it must not be used for
//! the agent's memory. This heap must never be used inside the sampling handler, and only with all signals blocked: a
//! handler of the program may call an interposed function at any instruction, and would deadlock on a lock that its own
//! thread holds.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};

use crate::kernel;
use crate::lock::Lock;

/// Block sizes are powers of two from 16 bytes to `LARGEST_CLASS`; larger blocks are separate mappings.
const SMALLEST_SHIFT: u32 = 4;
const LARGEST_CLASS: usize = 1 << 15;
const CLASSES: usize = 12;
/// Bytes mapped at a time for small blocks.
const CHUNK: usize = 256 * 1024;

/// A free block holds the address of the next one.
struct Free {
    next: Option<NonNull<Free>>,
}

struct Lists {
    free: [Option<NonNull<Free>>; CLASSES],
    bump: usize,
    end: usize,
}

/// The allocator of this library.
#[global_allocator]
pub(crate) static HEAP: Heap = Heap::new();

/// The heap as a global allocator.
pub(crate) struct Heap {
    lock: Lock,
    lists: UnsafeCell<Lists>,
}

// SAFETY: `lists` is accessed only while `lock` is held.
unsafe impl Sync for Heap {}

impl Heap {
    pub(crate) const fn new() -> Heap {
        Heap { lock: Lock::new(), lists: UnsafeCell::new(Lists { free: [None; CLASSES], bump: 0, end: 0 }) }
    }

    /// Unmaps the chunk that small blocks come from.
    ///
    /// # Safety
    /// No block may be in use, and none may be allocated later.
    pub(crate) unsafe fn give_up(&self) {
        // SAFETY: the caller promises that nobody else uses the lists.
        let lists = unsafe { &mut *self.lists.get() };
        if lists.end != 0 {
            // SAFETY: `take` made this mapping, and the caller promises that no block of it is in use.
            unsafe { kernel::unmap((lists.end - CHUNK) as *mut u8, CHUNK) };
        }
        *lists = Lists { free: [None; CLASSES], bump: 0, end: 0 };
    }

    /// The lock, which a fork must hold so that the child finds the lists consistent.
    pub(crate) fn lock(&self) -> &Lock {
        &self.lock
    }
}

/// The size class for `layout`; `None` if it needs a separate mapping.
fn class_of(layout: &Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(1 << SMALLEST_SHIFT).next_power_of_two();
    (size <= LARGEST_CLASS).then(|| (size.trailing_zeros() - SMALLEST_SHIFT) as usize)
}

impl Lists {
    /// Allocates a block of `class`, from its free list or from the current chunk.
    fn take(&mut self, class: usize) -> *mut u8 {
        if let Some(block) = self.free[class] {
            // SAFETY: blocks on a free list are ours, aligned, and hold a `Free` written by `put`.
            self.free[class] = unsafe { block.as_ref().next };
            return block.as_ptr().cast();
        }
        let size = 1usize << (class as u32 + SMALLEST_SHIFT);
        // Blocks are powers of two, so aligning to the size gives every alignment up to it.
        let mut start = (self.bump + size - 1) & !(size - 1);
        if self.bump == 0 || start + size > self.end {
            let Some(chunk) = kernel::map_private(CHUNK) else { return ptr::null_mut() };
            start = chunk.as_ptr() as usize;
            self.end = start + CHUNK;
            start = (start + size - 1) & !(size - 1);
        }
        self.bump = start + size;
        start as *mut u8
    }

    /// Frees a block of `class`.
    fn put(&mut self, class: usize, block: *mut u8) {
        let Some(block) = NonNull::new(block.cast::<Free>()) else { return };
        // SAFETY: the block is at least 16 bytes, aligned to its size, and no longer in use.
        unsafe { block.write(Free { next: self.free[class] }) };
        self.free[class] = Some(block);
    }
}

// SAFETY: blocks are disjoint, aligned to their size class, and live until `dealloc`; failure gives null.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(&layout) {
            Some(class) => {
                self.lock.acquire();
                // SAFETY: the lock is held.
                let block = unsafe { (*self.lists.get()).take(class) };
                self.lock.release();
                block
            }
            None => kernel::map_private(layout.size()).map_or(ptr::null_mut(), NonNull::as_ptr),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class_of(&layout) {
            Some(class) => {
                self.lock.acquire();
                // SAFETY: the lock is held, and the caller returns a block of this layout.
                unsafe { (*self.lists.get()).put(class, block) }
                self.lock.release();
            }
            // SAFETY: `alloc` mapped exactly this many bytes at this address.
            None => unsafe { kernel::unmap(block, layout.size()) },
        }
    }
}
