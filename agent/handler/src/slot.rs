//! One thread's place in the agent, and the arena of all such places.
//!
//! A slot belongs to one thread from claim to release. Blocks of slots are never returned to the kernel, so
//! any pointer into a block stays readable, whatever a signal carries.

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use shm_format::{StackChain, ThreadCursor};
use unwind::Memo;

use crate::kernel_ring::KernelRings;
use crate::nesting::Nesting;
use crate::process::Snapshot;
use crate::stack::Bounds;
use crate::sys;

/// Most frames a sample can have.
pub const MAX_FRAMES: usize = shm_format::MAX_DEPTH;
/// Slots in the first block; every further block has twice as many as the one before.
const FIRST_BLOCK: usize = 16;
/// Blocks: 16 * (2^15 - 1) slots are more threads than a process ever has.
const BLOCKS: usize = 15;
/// Slots that a handler looks at to find a free one.
const ADOPTION_SCAN: usize = 256;

/// Nobody's.
const FREE: u32 = 0;
/// A thread's.
const TAKEN: u32 = 1;

/// One thread's own state. Aligned so that no two threads share a cache line (or a prefetched pair).
#[repr(C, align(128))]
pub struct Slot {
    state: AtomicU32,
    tid: AtomicU32,
    sequence: AtomicU32,
    adopted: AtomicU32,
    hidden: AtomicU32,
    owed: AtomicU32,
    put_off: AtomicU32,
    timer: AtomicI32,
    /// The guard against two samples at once.
    pub nesting: Nesting,
    pin: AtomicPtr<Snapshot>,
    stack_low: AtomicU64,
    stack_high: AtomicU64,
    /// The rings by which the kernel asks for stacks.
    pub kernel_rings: KernelRings,
    /// The thread's place in the pool.
    pub cursor: ThreadCursor,
    chain: UnsafeCell<StackChain>,
    memo: UnsafeCell<Memo>,
}

// SAFETY: `cursor`, `chain` and `memo` are used by the owning thread inside `nesting` alone (or by the agent while no
// such thread exists); all else is atomic.
unsafe impl Sync for Slot {}

/// A part of the arena.
struct Block {
    slots: AtomicPtr<Slot>,
    taken: AtomicU32,
    /// Where a search begins: the slot given back last, or the one after the slot taken last.
    hint: AtomicU32,
}

static ARENA: [Block; BLOCKS] = [const {
    Block { slots: AtomicPtr::new(ptr::null_mut()), taken: AtomicU32::new(0), hint: AtomicU32::new(0) }
}; BLOCKS];

/// Slots that a handler made for threads that nobody announced.
static STRANGERS: AtomicU32 = AtomicU32::new(0);

/// Slots in block `index`.
const fn block_len(index: usize) -> usize {
    FIRST_BLOCK << index
}

impl Block {
    fn slot(&self, number: usize) -> Option<&'static Slot> {
        let base = self.slots.load(Ordering::Acquire);
        // SAFETY: a published block holds `block_len` slots, which bounds every caller's number, and is never
        // unmapped.
        (!base.is_null()).then(|| unsafe { &*base.add(number) })
    }

    /// Takes a free slot, looking at no more than `limit`.
    fn take(&self, len: usize, limit: usize) -> Option<&'static Slot> {
        if self.taken.load(Ordering::Relaxed) as usize >= len {
            return None;
        }
        let first = self.hint.load(Ordering::Relaxed) as usize;
        for offset in 0..len.min(limit) {
            let number = (first + offset) % len;
            let slot = self.slot(number)?;
            if slot.try_take() {
                self.taken.fetch_add(1, Ordering::Relaxed);
                self.hint.store(number as u32 + 1, Ordering::Relaxed);
                return Some(slot);
            }
        }
        None
    }
}

/// Bytes of the first block that the arena does not have, or none when it is full.
pub fn next_block_bytes() -> Option<usize> {
    let index = ARENA.iter().position(|block| block.slots.load(Ordering::Acquire).is_null())?;
    Some(block_len(index) * size_of::<Slot>())
}

/// Adds a block of slots.
///
/// # Safety
/// `block` has `bytes` zeroed bytes, those of [`next_block_bytes`], on a page boundary, and stays mapped for ever.
pub unsafe fn add_block(block: *mut u8, bytes: usize) {
    let place = ARENA.iter().enumerate().find(|(index, _)| block_len(*index) * size_of::<Slot>() == bytes);
    if let Some((_, place)) = place {
        // A zeroed slot is free, and whoever takes it initialises it. Pairs with the acquires of every look. Where
        // another was faster, its block stays and this one is room for nothing.
        let (order, block) = (Ordering::Release, block.cast::<Slot>());
        let _ = place.slots.compare_exchange(ptr::null_mut(), block, order, Ordering::Relaxed);
    }
}

/// Adds a block of slots from inside a handler.
#[cold]
pub(crate) fn make_room() {
    let Some(bytes) = next_block_bytes() else { return };
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let kind = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    // SAFETY: a new mapping at an address the kernel chooses overlaps nothing.
    let block = unsafe { sys::call(libc::SYS_mmap, [0, bytes, access, kind, usize::MAX, 0]) };
    if block > 0 {
        // SAFETY: a zeroed mapping of this size that is never unmapped.
        unsafe { add_block(block as *mut u8, bytes) };
    }
}

/// Slots that belong to a thread, about.
pub(crate) fn count() -> u32 {
    ARENA.iter().map(|block| block.taken.load(Ordering::Relaxed)).sum()
}

/// All slots that belong to a thread.
pub fn taken() -> impl Iterator<Item = &'static Slot> {
    ARENA
        .iter()
        .enumerate()
        .take_while(|(_, block)| !block.slots.load(Ordering::Acquire).is_null())
        .flat_map(|(index, block)| (0..block_len(index)).filter_map(|number| block.slot(number)))
        .filter(|slot| slot.is_taken())
}

/// The slot at `address`, if there is one exactly there.
pub fn at(address: usize) -> Option<&'static Slot> {
    locate(address).and_then(|(block, number)| block.slot(number))
}

/// The block and number of the slot at `address`.
fn locate(address: usize) -> Option<(&'static Block, usize)> {
    ARENA.iter().enumerate().find_map(|(index, block)| {
        let base = block.slots.load(Ordering::Acquire);
        let offset = address.checked_sub(base as usize)?;
        let number = offset / size_of::<Slot>();
        let exact = offset % size_of::<Slot>() == 0;
        (!base.is_null() && exact && number < block_len(index)).then_some((block, number))
    })
}

/// Claims a free slot for `tid`.
pub fn claim(tid: u32, sequence: u32) -> Option<&'static Slot> {
    let slot =
        ARENA.iter().enumerate().find_map(|(index, block)| block.take(block_len(index), usize::MAX))?;
    slot.begin(tid, sequence);
    Some(slot)
}

/// Finds or claims a slot from inside a handler, for a thread that nobody announced. The search is bounded.
pub fn adopt(tid: u32, sequence: u32) -> Option<&'static Slot> {
    // Threads of this kind come back by their id: thread-local storage may be another thread's.
    if let Some(slot) = taken().take(ADOPTION_SCAN).find(|slot| slot.tid() == tid) {
        return Some(slot);
    }
    let slot =
        ARENA.iter().enumerate().find_map(|(index, block)| block.take(block_len(index), ADOPTION_SCAN))?;
    slot.begin(tid, sequence);
    slot.adopted.store(1, Ordering::Release);
    STRANGERS.fetch_add(1, Ordering::Relaxed);
    Some(slot)
}

/// Slots of threads whose end nobody will announce.
pub fn strangers() -> impl Iterator<Item = &'static Slot> {
    let any = STRANGERS.load(Ordering::Relaxed) != 0;
    any.then(taken).into_iter().flatten().filter(|slot| slot.adopted.load(Ordering::Relaxed) != 0)
}

impl Slot {
    /// No timer belongs to the slot.
    pub const NO_TIMER: i32 = -1;

    fn try_take(&self) -> bool {
        self.state.load(Ordering::Relaxed) == FREE
            && self.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn is_taken(&self) -> bool {
        self.state.load(Ordering::Acquire) == TAKEN
    }

    fn begin(&self, tid: u32, sequence: u32) {
        self.set_stack(Bounds::NONE);
        self.sequence.store(sequence, Ordering::Relaxed);
        self.adopted.store(0, Ordering::Relaxed);
        self.hidden.store(0, Ordering::Relaxed);
        self.owed.store(0, Ordering::Relaxed);
        self.put_off.store(0, Ordering::Relaxed);
        self.timer.store(Self::NO_TIMER, Ordering::Relaxed);
        self.pin.store(ptr::null_mut(), Ordering::Relaxed);
        self.nesting.reset();
        self.kernel_rings.forget();
        // SAFETY: the slot has no thread that could be in its handler.
        unsafe { (*self.memo.get()).forget() };
        self.cursor.begin(tid, sequence);
        // SAFETY: no thread has the slot yet, so nobody else uses its chain.
        unsafe { &mut *self.chain.get() }.reset();
        self.tid.store(tid, Ordering::Release);
    }

    /// Starts the slot anew in a forked child, whose only thread keeps its stack.
    pub fn restart(&self, tid: u32, sequence: u32) {
        let (stack, hidden) = (self.stack(), self.is_hidden());
        self.begin(tid, sequence);
        self.set_stack(stack);
        self.set_hidden(hidden);
    }

    /// Notes that nobody will announce the thread's end.
    pub fn set_unannounced(&self) {
        self.adopted.store(2, Ordering::Relaxed);
        STRANGERS.fetch_add(1, Ordering::Relaxed);
    }

    /// True if a handler or another thread made this slot: its thread does not know it, and may have thread-local
    /// storage that is not the C library's.
    pub(crate) fn is_strange(&self) -> bool {
        self.adopted.load(Ordering::Relaxed) != 0
    }

    /// True once: the caller, and nobody else, ends the slot's life.
    pub fn end_adoption(&self) -> bool {
        let ended = self.adopted.swap(0, Ordering::AcqRel) != 0;
        if ended {
            STRANGERS.fetch_sub(1, Ordering::Relaxed);
        }
        ended
    }

    /// Leaves the slot to a handler that may be at work in it, for ever: nobody finds or takes it any more.
    pub fn abandon(&self) {
        self.end_adoption();
        self.tid.store(0, Ordering::Relaxed);
    }

    /// Gives the slot back. The cursor is closed and the timer deleted before.
    pub fn release(&self) {
        self.tid.store(0, Ordering::Relaxed);
        self.pin.store(ptr::null_mut(), Ordering::Relaxed);
        self.end_adoption();
        // Pairs with the acquire in `try_take`.
        self.state.store(FREE, Ordering::Release);
        if let Some((block, number)) = locate(ptr::from_ref(self) as usize) {
            block.hint.store(number as u32, Ordering::Relaxed);
            block.taken.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The kernel's id of the thread.
    pub fn tid(&self) -> u32 {
        self.tid.load(Ordering::Acquire)
    }

    /// The thread's number within the process, never used twice.
    pub fn sequence(&self) -> u32 {
        self.sequence.load(Ordering::Relaxed)
    }

    /// True once, if a handler made this slot for a thread that nobody announced.
    pub fn take_adopted(&self) -> bool {
        self.adopted.load(Ordering::Relaxed) == 1 && self.adopted.swap(2, Ordering::Acquire) == 1
    }

    /// True if the program believes that the thread blocks the sampling signal, but the kernel was not told.
    pub fn is_hidden(&self) -> bool {
        self.hidden.load(Ordering::Relaxed) != 0
    }

    /// Notes whether the program believes so.
    pub fn set_hidden(&self, hidden: bool) {
        self.hidden.store(hidden.into(), Ordering::Relaxed);
    }

    /// Notes that a request was answered whose signal has not come, or was merged with another.
    pub fn set_owed(&self) {
        self.owed.store(1, Ordering::Relaxed);
    }

    /// True once after [`set_owed`](Self::set_owed).
    pub fn take_owed(&self) -> bool {
        self.owed.swap(0, Ordering::Relaxed) != 0
    }

    /// Leaves so many periods to the thread's next sample.
    pub(crate) fn put_off(&self, periods: u32) {
        let sum = self.put_off.load(Ordering::Relaxed).saturating_add(periods);
        self.put_off.store(sum, Ordering::Relaxed);
    }

    /// The periods that ticks without a sample have left.
    pub fn take_put_off(&self) -> u32 {
        self.put_off.swap(0, Ordering::Relaxed)
    }

    /// The kernel's timer of the thread, or [`Slot::NO_TIMER`].
    pub fn timer(&self) -> i32 {
        self.timer.load(Ordering::Relaxed)
    }

    /// Notes the kernel's timer of the thread.
    pub fn set_timer(&self, timer: i32) {
        self.timer.store(timer, Ordering::Relaxed);
    }

    /// Where the thread's stack is, as far as known.
    pub fn stack(&self) -> Bounds {
        Bounds { low: self.stack_low.load(Ordering::Relaxed), high: self.stack_high.load(Ordering::Relaxed) }
    }

    /// Notes where the thread's stack is. By the thread itself, or before its first sample.
    pub fn set_stack(&self, bounds: Bounds) {
        // A handler between the stores sees an empty range.
        self.stack_high.store(0, Ordering::Relaxed);
        self.stack_low.store(bounds.low, Ordering::Relaxed);
        self.stack_high.store(bounds.high, Ordering::Relaxed);
    }

    /// The hazard pointer by which a walk keeps its snapshot from being freed.
    pub fn pin(&self) -> &AtomicPtr<Snapshot> {
        &self.pin
    }

    /// The stack that the thread recorded last.
    pub fn chain(&self) -> *mut StackChain {
        self.chain.get()
    }

    /// What the thread's last walk found.
    pub fn memo(&self) -> *mut Memo {
        self.memo.get()
    }
}

// The pointer to the calling thread's slot. Initial-exec: eight bytes of the static block, found without a
// call. A general-dynamic variable would reach `__tls_get_addr`, which may allocate inside the handler.
global_asm!(
    ".section .tbss,\"awT\",@nobits",
    ".globl selfwind_slot",
    ".hidden selfwind_slot",
    ".type selfwind_slot,@object",
    ".size selfwind_slot,8",
    ".p2align 3",
    "selfwind_slot:",
    ".zero 8",
    ".text",
);

/// The slot noted for the calling thread, or null.
///
/// Where no loader has placed the library there is no such variable, and its offset is 0: which is where every
/// thread's own control block begins (x86-64 TLS ABI), so no variable's.
#[inline]
fn current() -> *const Slot {
    let slot;
    // SAFETY: reads eight bytes of the thread's static block, at an offset the loader fixed.
    unsafe {
        asm!(
            "mov {0}, [rip + selfwind_slot@GOTTPOFF]",
            "test {0}, {0}",
            "jz 2f",
            "mov {0}, fs:[{0}]",
            "2:",
            out(reg) slot,
            options(nostack, readonly),
        );
    }
    slot
}

/// The calling thread's slot, if it has one noted.
#[inline]
pub fn noted() -> Option<&'static Slot> {
    // A thread of a bare `clone` may have memory of its own where others have the variable: whatever it holds.
    at(current() as usize)
}

/// Notes the calling thread's slot.
pub fn set_current(slot: *const Slot) {
    // SAFETY: writes eight bytes of the thread's static block that nothing else uses.
    unsafe {
        asm!(
            "mov {0}, [rip + selfwind_slot@GOTTPOFF]",
            "test {0}, {0}",
            "jz 2f",
            "mov fs:[{0}], {1}",
            "2:",
            out(reg) _,
            in(reg) slot,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::alloc::{Layout, alloc_zeroed};

    use super::*;

    #[test]
    fn slots_are_claimed_found_and_released() {
        let bytes = next_block_bytes().unwrap();
        // SAFETY: a zeroed block of the asked size, page-aligned and leaked.
        unsafe { add_block(alloc_zeroed(Layout::from_size_align(bytes, 4096).unwrap()), bytes) };
        let first = claim(11, 1).unwrap();
        let second = claim(12, 2).unwrap();
        assert!(!ptr::eq(first, second));
        assert!(at(ptr::from_ref(first) as usize).is_some_and(|slot| slot.tid() == 11));
        assert!(at(ptr::from_ref(first) as usize + 8).is_none());
        assert!(at(8).is_none());
        assert!(adopt(12, 9).is_some_and(|slot| ptr::eq(slot, second)));
        let stranger = adopt(13, 3).unwrap();
        assert!(stranger.take_adopted() && !stranger.take_adopted());
        assert_eq!(strangers().count(), 1);
        first.release();
        assert_eq!(taken().count(), 2);
        assert!(claim(14, 4).is_some_and(|slot| ptr::eq(slot, first)));
    }

    #[test]
    fn each_thread_has_its_own_pointer() {
        let word = 0u64;
        assert!(current().is_null());
        set_current((&raw const word).cast());
        std::thread::spawn(|| assert!(current().is_null())).join().unwrap();
        assert_eq!(current(), (&raw const word).cast());
        set_current(ptr::null());
    }
}
